"""Chromium without a window, driven over its DevTools pipe (fds 3 and 4, JSON ended by NUL)."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ANSWER_S = 60.0  # a busy machine may take long to answer anything
_LAUNCH = (
    "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 3); os.dup2(w, 4);"
    " os.execv(sys.argv[3], sys.argv[3:])"
)
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27}


class Browser:
    """One browser process."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium")
        assert program, "chromium is missing: run scripts/setup as root, or install it"
        theirs_in, ours_out = (_high(fd) for fd in os.pipe())
        ours_in, theirs_out = (_high(fd) for fd in os.pipe())
        launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(theirs_in), str(theirs_out)]
        self._process = subprocess.Popen(
            [*launch, program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._buffer = b""
        self._count = 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(30)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """One command, its result; what happens meanwhile is kept in ``events``."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def page(self, url: str, **size: Any) -> Page:
        """A tab of its own, with storage of its own, at ``url``."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(self, attached["sessionId"], target["targetId"])
        page.shape(**size)
        page.go(url)
        return page

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + ANSWER_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"chromium did not answer within {ANSWER_S:g} s"
            more = os.read(self._in, 1 << 20)
            assert more, "chromium has ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command to this tab."""
        return self._browser.call(method, self._session, **params)

    def go(self, url: str) -> None:
        """Load ``url``."""
        self.call("Page.navigate", url=url)

    def shape(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Size in CSS pixels, and the colour scheme that the user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def do(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, timeout_s: float = ANSWER_S) -> Any:
        """The first true value of an expression."""
        end, value = time.monotonic() + timeout_s, None
        while time.monotonic() < end:
            if value := self.do(script):
                return value
            time.sleep(0.05)
        raise AssertionError(f"did not become true: {script}; page: {self.text()[:800]}")

    def text(self) -> str:
        """What a reader sees."""
        return self.do("document.body?.innerText ?? ''")

    def press(self, key: str) -> None:
        """A key, down and up."""
        fields = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **fields, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)

    def picture(self, path: Path) -> bytes:
        """A PNG of the viewport."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return data

    def complaints(self) -> list[str]:
        """Exceptions, errors of the console, and what the content policy refused."""
        self.do("0")  # events before it have arrived
        return [
            json.dumps(event["params"])
            for event in self._browser.events
            if event.get("sessionId") == self._session
            and (
                event["method"] == "Runtime.exceptionThrown"
                or (
                    event["method"] == "Log.entryAdded"
                    and event["params"]["entry"]["level"] == "error"
                )
            )
        ]

    def requested(self) -> list[str]:
        """Every URL that the tab asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("sessionId") == self._session
            and event["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        """The tab is gone."""
        self._browser.call("Target.closeTarget", targetId=self._target)


def _high(fd: int) -> int:
    """The same pipe under a number that 3 and 4 cannot be."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20)
    os.close(fd)
    return moved
