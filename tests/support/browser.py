"""A headless Chromium, driven through its debugging pipe: no port, no driver program, no further dependency."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
DEADLINE_S = 60.0
"""For one answer. Reached only when something is broken."""


def find_browser() -> str | None:
    """The program, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class BrowserError(Exception):
    """The browser answered with an error, or not at all."""


class Browser:
    """One browser with one page. Use as a context; on leaving it is gone with everything it has written."""

    def __init__(self, width: int = 1280, height: int = 800) -> None:
        self.size = (width, height)
        self.messages: list[dict[str, Any]] = []
        """Events of the page that nobody has waited for: console messages, requests, exceptions."""
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None

    def __enter__(self) -> Browser:
        self._folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
        flags += ["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]
        flags += [f"--user-data-dir={self._folder.name}", f"--window-size={self.size[0]},{self.size[1]}"]
        # The browser reads commands from descriptor 3 and answers on 4.
        # Both are first moved out of the way: one of them may itself be 3 or 4.
        command = ["bash", "-c", 'exec "$@" 3<&"$IN" 4>&"$OUT"', "bash", str(find_browser()), "--remote-debugging-pipe"]
        low, high = (os.dup2(fd, number) for fd, number in ((to_read, 100), (to_write, 101)))
        self._process = subprocess.Popen(
            [*command, *flags, "about:blank"],
            pass_fds=(low, high),
            env={**os.environ, "IN": str(low), "OUT": str(high)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (to_read, to_write, low, high):
            os.close(fd)
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._send("Browser.close", {}, None)
        try:
            self._process.wait(DEADLINE_S / 4)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def _attach(self) -> None:
        targets = self._ask("Target.getTargets", {}, None)["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self._ask("Target.attachToTarget", {"targetId": page["targetId"], "flatten": True}, None)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command to the page and return its answer."""
        return self._ask(method, parameters, self._session)

    def open(self, path: Path) -> None:
        """Load a file and wait until the page says that it is ready."""
        self.messages.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        self.until("document.documentElement.dataset.ready === 'yes'")
        self.settle()

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.run(f"new Promise(done => requestAnimationFrame(() => done(!!({condition}))))"):
            if time.monotonic() > deadline:
                raise BrowserError(f"never true: {condition}")

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def key(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """One mouse event: `mouseMoved`, `mousePressed`, `mouseReleased`, `mouseWheel`."""
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def type(self, text: str) -> None:
        """Write into the field that has the focus."""
        self.ask("Input.insertText", text=text)
        self.settle()

    def screenshot(self, path: Path | None = None, *, whole: bool = False) -> bytes:
        """The page as PNG, kept in a file when asked."""
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        picture = base64.b64decode(data)
        if path is not None:
            path.write_bytes(picture)
        return picture

    def complaints(self) -> list[str]:
        """Exceptions, errors on the console, and violations of the page's own policy."""
        bad = ("Runtime.exceptionThrown", "Log.entryAdded")
        found = [m for m in self.messages if m.get("method") in bad]
        found += [m for m in self.messages if m.get("method") == "Runtime.consoleAPICalled"]
        return [json.dumps(message["params"])[:500] for message in found]

    def requests(self) -> list[str]:
        """The addresses of everything that the page has loaded."""
        sent = [m for m in self.messages if m.get("method") == "Network.requestWillBeSent"]
        return [message["params"]["request"]["url"] for message in sent]

    def _send(self, method: str, parameters: dict[str, Any], session: str | None) -> int:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        return number

    def _ask(self, method: str, parameters: dict[str, Any], session: str | None) -> dict[str, Any]:
        number = self._send(method, parameters, session)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            message = self._next(deadline, method)
            if message.get("id") != number:
                self.messages.append(message)
            elif "error" in message:
                raise BrowserError(f"{method}: {message['error']}")
            else:
                result: dict[str, Any] = message["result"]
                return result

    def _next(self, deadline: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise BrowserError(f"no answer to {waiting_for}")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
