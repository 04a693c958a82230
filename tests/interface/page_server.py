"""The page served for a test, on a free port of this machine."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fedfew.interface.page.access import own_names
from fedfew.interface.page.app import listen, make_server


@contextlib.contextmanager
def serving(root: Path, token: str = "", port: int = 0) -> Iterator[str]:
    """The address of a page about the runs below ``root``."""
    with listen("127.0.0.1", port) as sock:
        server = make_server(root, own_names("127.0.0.1"), token)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
