"""A relay that writes down what passes: between two sockets, of the network or of this machine."""

import socket
import threading
from pathlib import Path


class Recorder:
    """Passes connections on to ``target`` and keeps all bytes of both directions."""

    def __init__(self, target: tuple[str, int] | Path, place: tuple[str, int] | Path) -> None:
        self.target, self.sent, self.received = target, bytearray(), bytearray()
        """Bytes from who connects, and bytes back to it."""
        self._lock = threading.Lock()
        self._listener = _socket(place)
        self._listener.bind(place if isinstance(place, tuple) else str(place))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            beyond = _socket(self.target)
            try:
                beyond.connect(self.target if isinstance(self.target, tuple) else str(self.target))
            except OSError:
                end.close()
                continue
            for source, sink, kept in ((end, beyond, self.sent), (beyond, end, self.received)):
                threading.Thread(target=self._pass, args=(source, sink, kept), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        try:
            while content := source.recv(1 << 16):
                with self._lock:
                    kept += content
                sink.sendall(content)
        except OSError:
            pass
        for end, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
            try:
                end.shutdown(how)
            except OSError:
                continue

    def close(self) -> None:
        self._listener.close()


def _socket(place: tuple[str, int] | Path) -> socket.socket:
    return socket.socket(socket.AF_INET if isinstance(place, tuple) else socket.AF_UNIX)
