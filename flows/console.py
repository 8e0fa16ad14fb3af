"""Where a command speaks to the person who runs it: standard error, so that standard output is the result alone."""

from __future__ import annotations

from rich.console import Console

console = Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """Show a line among the stages. (A flow that names the console itself could not be sent to a worker.)"""
    console.print(line, soft_wrap=True, markup=False)
