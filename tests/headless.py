"""A real Chromium without a window, for tests of HTML pages, driven over its own debugging pipe.

The browser reads commands from file descriptor 3 and answers on 4: JSON texts with a zero byte after each. That needs
no driver program and no package. A test that asks for a browser where none is installed fails and says what to do.
"""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Generator
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
SECONDS = 60
# The browser insists on descriptors 3 and 4. Ours are moved out of the way first, for they may be just these.
_START = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(ours[0], 3)
os.dup2(ours[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str:
    """Path of a Chromium; `$DORMOUSE_BROWSER` comes first."""
    named = os.environ.get("DORMOUSE_BROWSER")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise AssertionError(
            f"no browser ({named or ', '.join(NAMES)}): the pages that dormouse writes are tested in a real one. "
            "Install it (Debian, Ubuntu: apt-get install chromium), or put its path into DORMOUSE_BROWSER."
        )
    return found


class Page:
    """One tab."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser, self._session = browser, session
        self.complaints: list[str] = []
        """Errors and warnings of the page so far, and every request but for its own file."""

    def call(self, method: str, **parameters) -> dict:
        """Run one command of the DevTools protocol in this tab."""
        return self._browser.call(method, self._session, parameters)

    def show(self, path: Path, *, width=1280, height=900, dark=False, scripts=True) -> None:
        """Load a file at a size of the viewport in CSS pixels, in a light or a dark scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.complaints.clear()
        self._browser.loaded.discard(self._session)
        self._browser.own[self._session] = path.resolve().as_uri()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._browser.wait(lambda: self._session in self._browser.loaded)

    def run(self, script: str):
        """The value of a JavaScript expression, as JSON would carry it; works where the page's scripts are off, too."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the left button in the middle of an element."""
        self._mouse(selector, "mousePressed", "mouseReleased")

    def point(self, selector: str) -> None:
        """Move the pointer onto an element."""
        self._mouse(selector)

    def press(self, key: str) -> None:
        """Press a named key such as `Tab`, `ArrowRight`."""
        codes = {"Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def screenshot(self, path: Path, *, whole=False) -> None:
        """Write a PNG of the viewport, or of the whole page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(b64decode(data))

    def _mouse(self, selector: str, *kinds: str) -> None:
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center'}); const r = e.getClientRects()[0]; "
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        where = {"x": box[0], "y": box[1]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **where)
        for kind in kinds:
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)


class Browser:
    """A running browser; use `launched`."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._rest, self._number, self._results = b"", 0, {}
        self._pages: dict[str, Page] = {}
        self.loaded: set[str] = set()
        self.own: dict[str, str] = {}

    def new_page(self) -> Page:
        """A new tab; what it complains about is collected from the start."""
        target = self.call("Target.createTarget", None, {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", None, {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        return page

    def call(self, method: str, session: str | None, parameters: dict) -> dict:
        """Send a command and wait for its answer."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        os.write(self._commands, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        self.wait(lambda: number in self._results)
        answer = self._results.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def wait(self, done) -> None:
        """Read what the browser sends until `done()`."""
        limit = time.monotonic() + SECONDS
        while not done():
            if time.monotonic() > limit or not select.select([self._answers], [], [], SECONDS)[0]:
                raise AssertionError(f"the browser did not answer for {SECONDS} seconds")
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise AssertionError("the browser has ended by itself")
            *texts, self._rest = (self._rest + data).split(b"\0")
            for text in texts:
                self._take(json.loads(text))

    def _take(self, message: dict) -> None:
        if "id" in message:
            self._results[message["id"]] = message
            return
        method, session, said = message["method"], message.get("sessionId"), message["params"]
        if method == "Page.loadEventFired":
            self.loaded.add(session)
        if session in self._pages:
            self._pages[session].complaints += self._complaint(method, session, said)

    def _complaint(self, method: str, session: str, said: dict) -> list[str]:
        if method == "Runtime.exceptionThrown":
            return [json.dumps(said["exceptionDetails"])]
        if method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            return [json.dumps(said["args"])]
        if method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            return [said["entry"]["text"]]
        url = said["request"]["url"] if method == "Network.requestWillBeSent" else self.own.get(session)
        return [] if url == self.own.get(session) or url.startswith("data:") else [f"request for {url}"]


@contextlib.contextmanager
def launched(folder: Path) -> Generator[Browser]:
    """A browser with a fresh profile in `folder`; ends with the block."""
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--mute-audio")
    command = [find_browser(), *flags, *quiet, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(from_us), str(to_us), *command],
        pass_fds=(from_us, to_us),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(from_us)
    os.close(to_us)
    browser = Browser(to_browser, from_browser)
    try:
        yield browser
        with contextlib.suppress(AssertionError, OSError):
            browser.call("Browser.close", None, {})
    finally:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(to_browser)
        os.close(from_browser)
