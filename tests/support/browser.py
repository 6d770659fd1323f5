"""A headless Chromium, driven over its debugging pipe: no package is needed for that."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--remote-debugging-pipe", "about:blank",
)  # fmt: skip
_LIMIT_S = 30.0


def find_browser() -> str | None:
    """The first that is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One page; ``complaints`` are errors and warnings of its console, ``requests`` what it asked for."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._rest, self._number = to, back, b"", 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = None
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self._send(f"{domain}.enable")

    def open(self, path: Path, *, ready: str = "document.documentElement?.dataset.ready") -> float:
        """Open a file and wait until an expression is true; seconds that took."""
        begin = time.monotonic()
        self._send("Page.navigate", url=path.as_uri())
        self.wait(ready)
        return time.monotonic() - begin

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + _LIMIT_S
        while not self.run(f"!!({expression})"):
            assert time.monotonic() < until, f"never true: {expression}; console: {self.complaints}"
            time.sleep(0.01)

    def run(self, expression: str) -> Any:
        """The value of an expression, which may be a promise."""
        found = self._send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """A key, as a keyboard sends it."""
        for kind in ("keyDown", "keyUp"):
            self._send("Input.dispatchKeyEvent", type=kind, key=key, **({"text": key} if len(key) == 1 else {}))

    def give(self, selector: str, path: Path) -> None:
        """Choose a file in an input."""
        root = self._send("DOM.getDocument")["root"]["nodeId"]
        node = self._send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self._send("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def resize(self, width: int, height: int, *, scale: float = 1.0, dark: bool = False) -> None:
        """The size of its window in CSS pixels, and whether the system is dark."""
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._send("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page as PNG."""
        found = self._send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def print(self, path: Path) -> None:
        """The page as PDF."""
        path.write_bytes(base64.b64decode(self._send("Page.printToPDF", printBackground=True)["data"]))

    def _send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            found = os.read(self._back, 1 << 20)
            assert found, "the browser has ended"
            self._rest += found
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
                self.complaints.append(str(params["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])


@contextmanager
def browser(program: str) -> Iterator[Tab]:
    """A browser with a profile of its own, ended at the end."""
    (theirs_in, to), (back, theirs_out) = os.pipe(), os.pipe()
    inputs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        silence = os.open(os.devnull, os.O_RDWR)
        actions = [
            *((os.POSIX_SPAWN_DUP2, silence, fd) for fd in (0, 1, 2)),
            *((os.POSIX_SPAWN_DUP2, fd, place) for place, fd in zip((3, 4), inputs, strict=True)),
        ]
        command = [program, f"--user-data-dir={profile}", *_FLAGS]
        process = os.posix_spawn(program, command, {**os.environ, "HOME": profile}, file_actions=actions, setpgroup=0)
        for fd in (theirs_in, theirs_out, silence, *inputs):
            os.close(fd)
        try:
            yield Tab(to, back)
        finally:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(to)
            os.close(back)
