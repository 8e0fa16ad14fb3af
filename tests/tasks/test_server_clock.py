"""Leases are judged by the server's clock, whatever this machine's says."""

from __future__ import annotations

import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from congruence.tasks.mlflow.server_clock import server_time
from congruence.tasks.mlflow.settings import TrackingSettings

AHEAD = 3600.0


class _Ahead(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(time.time() + AHEAD, usegmt=True)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def test_the_time_is_the_server_s_and_a_file_s_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), _Ahead) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        settings = TrackingSettings(uri=f"http://127.0.0.1:{http.server_port}")
        expected = time.time() + AHEAD
        assert server_time(settings) == pytest.approx(expected, abs=5.0)
        with monkeypatch.context() as changed:  # a clock that is set moves no lease
            changed.setattr(time, "time", lambda: 0.0)
            assert server_time(settings) == pytest.approx(expected, abs=10.0)
        http.shutdown()
        thread.join()
    assert server_time(TrackingSettings(uri="sqlite:///x.db")) == pytest.approx(time.time(), abs=1.0)
