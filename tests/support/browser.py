"""A headless Chromium that is installed here, driven by Playwright, whose own browsers are not needed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import ConsoleMessage, Page, Request, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_LIMIT_MS = 30_000.0


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One page; ``complaints`` are errors and warnings of its console, ``requests`` what it asked for."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(_LIMIT_MS)
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._note_request)

    def open(self, path: Path, *, query: str = "", ready: str = "document.documentElement?.dataset.ready") -> float:
        """Open a file and wait until an expression is true; seconds that took."""
        begin = time.monotonic()
        self._page.goto(f"{path.as_uri()}?{query}" if query else path.as_uri())
        self.wait(ready)
        return time.monotonic() - begin

    def wait(self, expression: str) -> None:
        until = time.monotonic() + _LIMIT_MS / 1000
        while not self.run(f"!!({expression})"):
            assert time.monotonic() < until, f"never true: {expression}; console: {self.complaints}"
            self._page.wait_for_timeout(10)

    def run(self, expression: str) -> Any:
        """The value of an expression, which may be a promise."""
        return self._page.evaluate(expression)

    def click(self, selector: str) -> None:
        """The first element that is found, as a mouse does it."""
        self._page.locator(selector).first.click()

    def press(self, key: str) -> None:
        """A key, as a keyboard sends it."""
        self._page.keyboard.press(key)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of its window in CSS pixels, and whether the system is dark."""
        scheme: Literal["dark", "light"] = "dark" if dark else "light"
        self._page.set_viewport_size({"width": width, "height": height})
        self._page.emulate_media(color_scheme=scheme)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        self._page.screenshot(path=path, full_page=whole)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _note_request(self, request: Request) -> None:
        self.requests.append(request.url)


@contextmanager
def browser(program: str) -> Iterator[Tab]:
    """A browser with a profile of its own, ended at the end."""
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield Tab(opened.new_page())
        finally:
            opened.close()
