"""What people import is listed, with its arguments; a change of it is seen and accepted on purpose.

``python tests/kernels/test_public_api.py`` accepts what is there now.
"""

import difflib
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LISTED = Path(__file__).with_name("public_api.txt")
PLACES = ("congruence", "congruence.kernels", "congruence.tasks.plots")
PLAIN = (bool, int, float, str, type(None))


def api() -> str:
    lines = [line for place in PLACES for name in names(place) for line in told(place, name)]
    return "\n".join(lines) + "\n"


def names(place: str) -> list[str]:
    """Constants, then classes, then functions."""
    exported = importlib.import_module(place).__all__
    return sorted(exported, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def told(place: str, name: str) -> Iterator[str]:
    found, full = getattr(importlib.import_module(place), name), f"{place}.{name}"
    if not callable(found):
        yield f"{full}: {type(found).__name__}"
    elif not inspect.isclass(found) or issubclass(found, Exception):
        yield full + ("" if inspect.isclass(found) else arguments(found))
    else:
        yield full + ("" if inspect.isabstract(found) else arguments(found))
        yield from (f"  {line}" for line in members(found))


def members(kind: type) -> Iterator[str]:
    """Methods and properties that a class adds to its bases, or whose arguments it changes."""
    fields = getattr(kind, "__dataclass_fields__", {})
    for name, member in sorted(vars(kind).items()):
        if name.startswith("_") or name in fields:
            continue
        line = f".{name}" + (arguments(getattr(kind, name)) if callable(getattr(kind, name)) else "")
        bases = [getattr(base, name) for base in kind.__mro__[1:] if hasattr(base, name)]
        known = bases and (not callable(bases[0]) or f".{name}{arguments(bases[0])}" == line)
        if not known and (callable(getattr(kind, name)) or isinstance(member, property) or hasattr(member, "func")):
            yield line


def arguments(found: Any) -> str:
    """Names, kinds and plain defaults: annotations are the type checker's."""
    signature = inspect.signature(found)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=default(parameter.default))
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


class Other:
    def __repr__(self) -> str:
        return "..."


def default(value: Any) -> Any:
    if value is inspect.Parameter.empty or isinstance(value, PLAIN):
        return value
    plain = isinstance(value, tuple) and all(isinstance(part, PLAIN) for part in value)
    return value if plain else Other()


def test_the_public_api_is_the_one_that_is_listed() -> None:
    changes = [
        line
        for line in difflib.unified_diff(LISTED.read_text().splitlines(), api().splitlines(), n=0, lineterm="")
        if line[0] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert not changes, (
        "the public API has changed:\n" + "\n".join(changes) + "\n"
        "If it should, run `python tests/kernels/test_public_api.py` and write it into docs/changelog.md; "
        "a line with - breaks programs of others."
    )


def test_targets_come_before_predictions_everywhere() -> None:
    for place in PLACES:
        for name in importlib.import_module(place).__all__:
            found = getattr(importlib.import_module(place), name)
            asked = list(inspect.signature(found).parameters) if inspect.isfunction(found) else []
            if "y" in asked and "predictive" in asked:
                assert asked.index("y") < asked.index("predictive"), f"{place}.{name}{asked}"


def test_what_people_import_is_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text().split()
    names: dict[object, set[str]] = {}
    for place in PLACES:
        module = importlib.import_module(place)
        for name in module.__all__:
            if callable(found := getattr(module, name)):
                names.setdefault(found, set()).add(f"{place}.{name}")
    assert [called for called in names.values() if not called & set(page)] == []


if __name__ == "__main__":
    LISTED.write_text(api())
