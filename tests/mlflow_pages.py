"""A real browser that looks at an MLflow server, for tests and benchmarks."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Target:
    """A page or a frame over Chromium's DevTools protocol."""

    def __init__(self, address: str) -> None:
        self.socket = connect(address, max_size=None)
        self.calls = 0
        self.events: list[dict] = []

    def call(self, method: str, **parameters: object) -> dict:
        self.calls += 1
        self.socket.send(json.dumps({"id": self.calls, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.socket.recv(timeout=60))
            if answer.get("id") == self.calls:
                return answer["result"]
            self.events.append(answer)

    def evaluate(self, expression: str) -> object:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait(self, condition: str, seconds: float = 60.0) -> bool:
        """Whether the JavaScript ``condition`` came true within that time."""
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def errors(self) -> list[str]:
        """What went to the console as an error, and exceptions that nothing caught, since the page began."""
        self.call("Runtime.enable")
        self.call("Runtime.disable")
        found = [event["params"] for event in self.events if event.get("method") == "Runtime.exceptionThrown"]
        said = [event["params"] for event in self.events if event.get("method") == "Runtime.consoleAPICalled"]
        return [each["exceptionDetails"]["text"] for each in found] + [
            " ".join(str(part.get("value", "")) for part in each["args"]) for each in said if each["type"] == "error"
        ]


class Browser(Target):
    """Headless Chromium over its DevTools protocol: open a page, wait for words, take a picture."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self.profile = tempfile.mkdtemp()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
        flags += ["--disable-background-networking", "--disable-component-update", "--window-size=1600,1100"]
        flags += ["--remote-debugging-port=0", f"--user-data-dir={self.profile}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([CHROMIUM, *flags, "about:blank"], **quiet)
        port_file = Path(self.profile) / "DevToolsActivePort"
        for _ in range(600):
            if port_file.exists() and "\n" in port_file.read_text():
                break
            time.sleep(0.1)
        self.listing = f"http://127.0.0.1:{port_file.read_text().split()[0]}/json"
        super().__init__(self._addresses("page")[0])

    def _addresses(self, kind: str) -> list[str]:
        with urlopen(self.listing) as listing:
            return [target["webSocketDebuggerUrl"] for target in json.load(listing) if target["type"] == kind]

    def frames(self, seconds: float = 60.0) -> list[Target]:
        """The frames of the page that may not see it, once there is one."""
        end = time.monotonic() + seconds
        while not (found := self._addresses("iframe")) and time.monotonic() < end:
            time.sleep(0.1)
        return [Target(address) for address in found]

    def open(self, url: str) -> None:
        """Go to a page, from an empty one, so that nothing of the page before is taken for it."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)

    def read(self, url: str, *words: str) -> str:
        """The text of the page, once all ``words`` are on it (or after a minute)."""
        self.open(url)
        for _ in range(600):
            text = str(self.evaluate("document.body ? document.body.innerText : ''"))
            if all(word in text for word in words):
                break
            time.sleep(0.1)
        return text

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Keep a picture of the window, or of the ``whole`` page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)
