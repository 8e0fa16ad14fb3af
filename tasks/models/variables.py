"""The environment variables that a model's process, or the making of its environment, is given: nothing of ours.

What is passed on is listed; of that, names that tell of a secret and addresses with a password in them are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

_OF_THE_MACHINE = re.compile(
    r"PATH|LANG|LANGUAGE|LC_\w+|TZ|LD_LIBRARY_PATH|CUDA_VISIBLE_DEVICES|CUDA_HOME|NVIDIA_VISIBLE_DEVICES"
    r"|(OMP|OPENBLAS|MKL|NUMEXPR)_NUM_THREADS|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE"
)
_PROXIES = re.compile(r"(https?|all|no)_proxy", re.IGNORECASE)
_OF_THE_INDEX = re.compile(r"(PIP|UV)_\w+|PYENV_ROOT")
_INDEX_SETTINGS = ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS")
_SECRET = re.compile(r"TOKEN|PASSWORD|PASSWD|SECRET|KEY|CREDENTIAL", re.IGNORECASE)
_USER_INFO = re.compile(r"//[^/\s]*@")
_OF_MLFLOW = re.compile(r"MLFLOW_ALLOW_(MODEL_CODE_EXECUTION|PICKLE_DESERIALIZATION)")
"""What MLflow is forbidden holds in the model's own process, too."""
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}


def model_variables(home: Path) -> dict[str, str]:
    """Variables of a process that runs a model's code, with ``home`` as its home and temporary folder."""
    passed_on = _passed_on(_OF_THE_MACHINE, _PROXIES, _OF_MLFLOW)
    found = {name: value for name, value in passed_on.items() if not _USER_INFO.search(value)}
    return {**found, **_QUIET, "HOME": str(home), "TMPDIR": str(home)}


def build_variables(home: Path, cache: Path) -> dict[str, str]:
    """Variables of a process that makes an environment: also how to reach the package index, password and all."""
    found = _passed_on(_OF_THE_MACHINE, _PROXIES, _OF_THE_INDEX)
    user = Path.home()
    settings = user / ".config" / "pip" / "pip.conf"
    defaults = {
        "PIP_CACHE_DIR": str(cache / "pip"),
        "UV_CACHE_DIR": str(cache / "uv"),
        "PIP_NO_INPUT": "1",
        "PIP_COMPILE": "0",  # what a model imports is compiled as it is loaded, which is a small part
        # uv does not read pip's settings.
        **{f"UV_{name}": found[f"PIP_{name}"] for name in _INDEX_SETTINGS if f"PIP_{name}" in found},
        **({"PIP_CONFIG_FILE": str(settings)} if settings.exists() else {}),
        **({"PYENV_ROOT": str(user / ".pyenv")} if (user / ".pyenv").exists() else {}),
    }
    beside_python = str(Path(sys.executable).parent)  # uv that was installed as a package
    path = found.get("PATH", os.defpath)
    if shutil.which("uv", path=path) is None and shutil.which("uv", path=beside_python):
        path = f"{path}{os.pathsep}{beside_python}"
    return {**defaults, **found, **_QUIET, "PATH": path, "HOME": str(home), "TMPDIR": str(home)}


def _passed_on(*kinds: re.Pattern[str]) -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if any(kind.fullmatch(name) for kind in kinds) and not _SECRET.search(name)
    }
