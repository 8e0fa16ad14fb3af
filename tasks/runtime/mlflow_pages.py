"""What MLflow lists page by page, as one list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def all_pages(search: Callable[[str | None], Any]) -> Iterator[Any]:
    """The items of every page; ``search`` is given the token of the page that it is to ask for."""
    token: str | None = None
    while True:
        page = search(token)
        yield from page
        token = page.token
        if not token:
            return
