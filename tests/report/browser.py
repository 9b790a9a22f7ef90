"""A headless Chromium, driven through its DevTools protocol."""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import websocket


class BrowserError(Exception):
    pass


class Browser:
    """One Chromium; `with Browser(path) as b:` ends it and removes its profile."""

    START_SECONDS = 60
    REPLY_SECONDS = 60
    END_SECONDS = 10

    def __init__(self, program):
        self._folder = tempfile.mkdtemp(prefix="headq-browser-")
        self._log = open(os.path.join(self._folder, "log"), "wb")
        # As root, and in most containers, Chromium's sandbox cannot start.
        self._process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-background-networking",
             "--disable-component-update",
             "--remote-debugging-port=0", "--remote-allow-origins=*", "--hide-scrollbars",
             f"--user-data-dir={self._folder}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True)
        self._next_id = 0
        self._socket = None
        try:
            self._socket = websocket.create_connection(
                self._page_address(), timeout=self.REPLY_SECONDS, max_size=None)
        except Exception:
            self.close()
            raise
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self._socket:
            self._socket.close()
        # The program may be a script that starts the browser; the group holds both.
        end = time.monotonic() + self.END_SECONDS
        number = signal.SIGTERM
        while self._signal(number):
            self._process.poll()
            time.sleep(0.05)
            number = signal.SIGKILL if time.monotonic() > end else 0
        self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _signal(self, number):
        """Whether there was anyone to get the signal; 0 only asks."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _page_address(self):
        port_file = Path(self._folder) / "DevToolsActivePort"
        end = time.monotonic() + self.START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                log = (Path(self._folder) / "log").read_text(errors="replace")
                raise BrowserError(f"the browser ended at once: {log[-2000:]}")
            if port_file.exists() and len(port_file.read_text().splitlines()) == 2:
                port = port_file.read_text().splitlines()[0]
                return self._first_page(port)
            time.sleep(0.05)
        raise BrowserError("the browser did not open its debugging port")

    @staticmethod
    def _first_page(port):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{port}/json/list") as reply:
            pages = [t for t in json.load(reply) if t["type"] == "page"]
        return pages[0]["webSocketDebuggerUrl"]

    def call(self, method, **params):
        self._next_id += 1
        self._socket.send(json.dumps({"id": self._next_id, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._next_id:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def evaluate(self, expression):
        """The value of a JavaScript expression, awaited when it is a promise."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def open(self, path, width=1280, height=900, scheme="light"):
        """Loads a file, waits until it has settled; events hold what happened meanwhile."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        self._wait_for("Page.loadEventFired")
        self.settle()

    def resize(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)

    def settle(self):
        """Waits until the page has drawn twice and its timers of now have run."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame("
                      "() => setTimeout(done, 50))))")

    def _wait_for(self, name):
        end = time.monotonic() + self.REPLY_SECONDS
        while not any(e.get("method") == name for e in self.events):
            if time.monotonic() > end:
                raise BrowserError(f"no {name}")
            self.events.append(json.loads(self._socket.recv()))

    def screenshot(self, path, clip=None):
        more = {"clip": {**clip, "scale": 1}} if clip else {}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, **more)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def pdf(self, path):
        data = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def pixels(self, element):
        """A picture of the part of an element that fits the window, to compare with another."""
        clip = self.evaluate(f"""(() => {{ const node = {element};
          node.scrollIntoView({{block: 'start'}});
          const box = node.getBoundingClientRect();
          return {{x: box.x + scrollX, y: box.y + scrollY, width: box.width,
            height: Math.min(box.height, innerHeight)}}; }})()""")
        return self.call("Page.captureScreenshot", clip={**clip, "scale": 1})["data"]
