"""Annotations of GitHub Actions: a line on standard output that GitHub shows at a file of the pull request."""

from __future__ import annotations

import os
from pathlib import Path


def annotation(level: str, title: str, message: str, file: Path) -> str:
    """``::error file=...,line=...,title=...::message`` at the ``gate:`` of an evaluation file.

    Source: GitHub Docs, "Workflow commands for GitHub Actions"; what would end a part of the line is escaped.
    """
    properties = {"file": _in_the_checkout(file), "line": str(_line_of_the_gate(file)), "title": title}
    written = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
    return f"::{level} {written}::{_escaped(message)}"


def _escaped(text: str, separators: str = "") -> str:
    for character in "%\r\n" + separators:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _in_the_checkout(file: Path) -> str:
    """Relative to the repository, where GitHub looks for it."""
    root = Path(os.environ.get("GITHUB_WORKSPACE", ".")).resolve()
    path = file.resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(file)


def _line_of_the_gate(file: Path) -> int:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return 1
    return next((number for number, line in enumerate(lines, 1) if line.startswith("gate:")), 1)
