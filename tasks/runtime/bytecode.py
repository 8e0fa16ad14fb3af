"""Bytecode of packages that were installed without it, where Python is told to leave none beside the sources."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def keep_bytecode(package: str = "mlflow") -> None:
    """Have this process and those that it starts keep what they compile in the environment's own folder.

    With ``PYTHONDONTWRITEBYTECODE``, after an installer that does not compile (uv), each process compiles some 2,000
    files before its first line: the variable's purpose, sources that stay as they are, is met and the bytecode kept.
    Nothing is changed without that variable, with ``PYTHONPYCACHEPREFIX``, or where ``package`` was compiled.
    """
    spec = find_spec(package)
    compiled = spec is not None and spec.cached is not None and Path(spec.cached).exists()
    if compiled or not os.environ.get("PYTHONDONTWRITEBYTECODE") or sys.pycache_prefix is not None:
        return
    sys.pycache_prefix, sys.dont_write_bytecode = str(Path(sys.prefix, "bytecode")), False
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    del os.environ["PYTHONDONTWRITEBYTECODE"]
