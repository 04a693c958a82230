"""Debian's Chromium, without a window, spoken to in its own DevTools protocol over a websocket."""

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


def chromium() -> str | None:
    """The browser's command, if it is installed."""
    return shutil.which("chromium")


@dataclass
class Tab:
    """A page in the browser: commands are sent and answered in turn, events are kept as they come."""

    line: ClientConnection
    number: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command's result."""
        self.number += 1
        self.line.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.line.recv(timeout=60))
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def open(self, address: str, width: int = 1200, height: int = 900, *, dark: bool = False) -> None:
        """Go to an address at a window size, with the events of earlier pages forgotten."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        mobile = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[theme])
        self.send("Page.navigate", url="about:blank")
        self.events.clear()
        self.send("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def wait(self, script: str, seconds: float = 60.0) -> float:
        """Wait until an expression is true; how long that took."""
        start = time.monotonic()
        while not self._holds(script):
            if time.monotonic() - start > seconds:
                raise TimeoutError(script)
            time.sleep(0.05)
        return time.monotonic() - start

    def _holds(self, script: str) -> bool:
        """Whether an expression is true; not yet while the page is being left for the next one."""
        try:
            return bool(self.run(script))
        except RuntimeError as error:
            if "navigated" in str(error) or "context" in str(error):
                return False
            raise

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """What is in the window, or the whole page."""
        options: dict[str, Any] = {"format": "png"}
        if whole:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            options |= {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "scale": 1} | _sides(size)}
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", **options)["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions nobody caught."""
        self.run("1")  # collects what is still on the way
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"]))
            if event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            if event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(params["args"]))
        return found

    def requests(self) -> list[str]:
        """Every address the page has asked for."""
        self.run("1")
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]


def _sides(size: dict[str, float]) -> dict[str, float]:
    return {"width": size["width"], "height": size["height"]}


@contextlib.contextmanager
def browser() -> Iterator[Tab]:
    """A fresh browser with one tab; its profile is gone afterwards."""
    command = chromium()
    if command is None:
        raise FileNotFoundError("chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [command, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with connect(
                _tab_address(Path(profile) / "DevToolsActivePort"), max_size=2**26, ping_interval=None
            ) as line:
                yield Tab(line)
        finally:
            process.terminate()
            process.wait(10)


def _tab_address(port_file: Path) -> str:
    """The websocket of the first tab, as soon as the browser tells its port."""
    for _ in range(600):
        with contextlib.suppress(OSError, IndexError, StopIteration, ValueError):
            port = int(port_file.read_text().splitlines()[0])
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
                return str(next(t for t in json.load(answer) if t["type"] == "page")["webSocketDebuggerUrl"])
        time.sleep(0.1)
    raise TimeoutError("chromium did not start")
