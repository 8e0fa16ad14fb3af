"""The set-up gives uv what the user told pip, and nothing that uv was told itself."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", Path(__file__).parents[1] / "infra" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pip_settings_reach_uv(install: ModuleType) -> None:
    settings = {
        "index-url": "https://a/simple",
        "extra-index-url": "https://b/simple\nfile:///c",
        "find-links": "/w /v",
    }
    assert install.uv_variables(settings, {}) == {
        "UV_DEFAULT_INDEX": "https://a/simple",
        "UV_INDEX": "https://b/simple file:///c",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/w,/v",
    }


def test_settings_of_uv_win(install: ModuleType) -> None:
    own = {"UV_DEFAULT_INDEX": "https://mine/simple", "UV_INDEX": "https://other/simple"}
    assert install.uv_variables({"index-url": "https://a/simple", "extra-index-url": "https://b/simple"}, own) == {}


def test_variables_of_pip_come_before_its_files(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://file/simple\ncert = /from/file.pem\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable/simple")
    settings = install.pip_settings()
    assert settings["index-url"] == "https://variable/simple"
