"""Headless Chromium for tests, driven over a DevTools protocol pipe."""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from base64 import b64decode
from contextlib import contextmanager

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe"),
)
# Chromium reads from descriptor 3 and writes to 4, so the pipes are duplicated to these numbers.
LAUNCH = (
    "import fcntl, os, sys;"
    "read, write = (fcntl.fcntl(int(it), fcntl.F_DUPFD, 10) for it in sys.argv[1:3]);"
    "os.dup2(read, 3); os.dup2(write, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def find_browser():
    """Path of an installed browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """An open page, recording its console messages and network requests."""

    def __init__(self, read, write):
        self._read, self._write = read, write
        self._buffer = b""
        self._number = 0
        self._session = None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, seconds=60, **arguments):
        """Send a command and return the browser's answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message(seconds)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _message(self, seconds):
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has exited"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path, width=1100, height=900, dark=False):
        """Open a file in a window of the given size."""
        self.resize(width, height, dark)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message(60))
        self.settle()

    def resize(self, width, height=900, dark=False):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def settle(self):
        """Wait until pending drawing is done."""
        self.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")

    def run(self, script):
        """Evaluate an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key, code):
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )
        self.settle()

    def point(self, x, y):
        """Move the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def screenshot(self, path, whole=False):
        """Save a PNG of the window, or of the whole page."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(b64decode(picture["data"]))

    def complaints(self):
        """Console messages and exceptions."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event["params"] for event in self.events if event.get("method") in kinds]

    def requests(self):
        """URLs of all requests."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]


@contextmanager
def open_browser(profile):
    """A tab of a new browser, with its profile in an empty folder."""
    to_browser, ours_write = os.pipe()
    ours_read, from_browser = os.pipe()
    command = (find_browser(), *FLAGS, f"--user-data-dir={profile}", "about:blank")
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(to_browser), str(from_browser), *command],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Tab(ours_read, ours_write)
    finally:
        # Chromium and its child processes exit once nobody reads their output.
        os.close(ours_read)
        os.close(ours_write)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
