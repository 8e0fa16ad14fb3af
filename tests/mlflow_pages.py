"""A real MLflow server on loopback and a real browser that looks at it, for tests and benchmarks."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Server:
    """``mlflow server`` on loopback, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        store, artifacts = f"sqlite:///{self.folder}/mlflow.db", str(self.folder / "artifacts")
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--artifacts-destination"]
        command += [artifacts, "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        for _ in range(600):
            try:
                with urlopen(f"{self.uri}/health", timeout=1):
                    return
            except (URLError, OSError):
                time.sleep(0.1)
        raise RuntimeError((self.folder / "server.log").read_text()[-2000:])

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


class Browser:
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
        with urlopen(f"http://127.0.0.1:{port_file.read_text().split()[0]}/json") as listing:
            page = next(target for target in json.load(listing) if target["type"] == "page")
        self.socket = connect(page["webSocketDebuggerUrl"], max_size=None)
        self.calls = 0

    def call(self, method: str, **parameters: object) -> dict:
        self.calls += 1
        self.socket.send(json.dumps({"id": self.calls, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.socket.recv(timeout=60))
            if answer.get("id") == self.calls:
                return answer["result"]

    def evaluate(self, expression: str) -> object:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

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

    def wait(self, condition: str, seconds: float = 60.0) -> bool:
        """Whether the JavaScript ``condition`` came true within that time."""
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Keep a picture of the window, or of the ``whole`` page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)
