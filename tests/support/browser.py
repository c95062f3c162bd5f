"""A headless Chromium that is asked what it made of a page: through a pipe, in the words of its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 60.0
# No look at the network on its own account, no GPU, no sandbox (root, and containers without user namespaces).
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


@dataclass(slots=True, kw_only=True)
class Browser:
    """One page. said: what stood in the console; asked: addresses that were looked for, but files and data."""

    read: int
    write: int
    session: str = ""
    number: int = 0
    rest: bytes = b""
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    loaded: int = 0

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """Ask, and wait for the answer; events on the way are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": values}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])
            self._keep(answer)

    def open(self, path: Path, *, width: int = 1200, media: str = "") -> None:
        """Show a file in a window of so many pixels, and wait until it is there. media: "print": as on paper."""
        self.said.clear(), self.asked.clear()
        self.call("Emulation.setEmulatedMedia", media=media)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        before = self.loaded
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self.loaded == before:
            self._keep(self._next())

    def value(self, expression: str) -> Any:
        """What JavaScript makes of it in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self) -> bytes:
        """A PNG of the whole page."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def paper(self) -> bytes:
        """A PDF of the page as it is printed, on A4."""
        asked = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True}
        return base64.b64decode(self.call("Page.printToPDF", **asked)["data"])

    def close(self) -> None:
        """Ask it to end by itself: killed, it leaves its folders in /tmp."""
        os.write(self.write, json.dumps({"id": self.number + 1, "method": "Browser.close"}).encode() + b"\0")

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_S
        with selectors.DefaultSelector() as ready:
            ready.register(self.read, selectors.EVENT_READ)
            while b"\0" not in self.rest:
                assert ready.select(deadline - time.monotonic()), f"the browser said nothing for {TIMEOUT_S:.0f} s"
                new = os.read(self.read, 1 << 20)
                assert new, "the browser is gone"
                self.rest += new
        line, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(line))

    def _keep(self, event: dict[str, Any]) -> None:
        values = event.get("params", {})
        match event.get("method"):
            case "Log.entryAdded":
                self.said.append(values["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.said.append(json.dumps(values))
            case "Network.requestWillBeSent" if not values["request"]["url"].startswith(("file:", "data:")):
                self.asked.append(values["request"]["url"])
            case "Page.loadEventFired":
                self.loaded += 1


@contextmanager
def started(home: Path) -> Iterator[Browser]:
    """A browser with an empty page, whose own files lie in `home`. Skips where none is installed."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium: tests/testbed installs it")
    (theirs, write), (read, answers) = os.pipe(), os.pipe()
    # It reads from 3 and writes to 4, which the shell sets: whatever numbers the pipes have here.
    shell = f"exec {program} {' '.join(FLAGS)} --user-data-dir={home} about:blank 3<&{theirs} 4>&{answers}"
    environ = {"PATH": os.environ["PATH"], "HOME": str(home)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    process = subprocess.Popen(["bash", "-c", shell], pass_fds=(theirs, answers), env=environ, **quiet)
    os.close(theirs), os.close(answers)
    try:
        browser = Browser(read=read, write=write)
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.session = session
        for domain in ("Page", "Runtime", "Log", "Network"):
            browser.call(f"{domain}.enable")
        yield browser
        browser.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
    finally:
        os.close(write), os.close(read)
        with suppress(ProcessLookupError):
            process.kill()
        process.wait(30)
