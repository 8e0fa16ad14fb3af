"""The set-up gives uv what the user told pip, and nothing that uv was told itself."""

import runpy
from pathlib import Path

import pytest

INSTALL = runpy.run_path(str(Path(__file__).parents[1] / "infra" / "install.py"))
uv_variables, pip_settings = INSTALL["uv_variables"], INSTALL["pip_settings"]


def test_pip_settings_reach_uv() -> None:
    settings = {
        "index-url": "https://a/simple",
        "extra-index-url": "https://b/simple\nfile:///c",
        "find-links": "/w /v",
    }
    assert uv_variables(settings, {}) == {
        "UV_DEFAULT_INDEX": "https://a/simple",
        "UV_INDEX": "https://b/simple file:///c",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/w,/v",
    }


def test_settings_of_uv_win() -> None:
    own = {"UV_DEFAULT_INDEX": "https://mine/simple", "UV_INDEX": "https://other/simple"}
    assert uv_variables({"index-url": "https://a/simple", "extra-index-url": "https://b/simple"}, own) == {}


def test_variables_of_pip_come_before_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://file/simple\ncert = /from/file.pem\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable/simple")
    assert pip_settings()["index-url"] == "https://variable/simple"
