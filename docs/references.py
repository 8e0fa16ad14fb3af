"""The reference pages that the program itself knows: commands, keys of the evaluation file, metrics.

They are kept as text, which a forge shows, below a line in each page; ``python docs/references.py`` writes them.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from congruence.flows.cli.app import app
from congruence.tasks.scores.metrics import MetricName
from congruence.tasks.scores.metrics.metric import Metric
from congruence.tasks.scores.metrics.registry import METRICS, metric_names
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.parts import Strict


def commands() -> str:
    """Every command with its arguments and options, as ``--help`` has them."""
    parts = []
    for name, command in _commands(typer.main.get_command(app)):
        if command.hidden:
            continue
        parts.append(f"## congruence {name}\n\n{inspect.cleandoc(command.help or '')}\n")
        rows = []
        for parameter in command.params:
            if getattr(parameter, "hidden", False) or parameter.name == "help":
                continue
            names = [*parameter.opts, *parameter.secondary_opts]
            spelled = ", ".join(names) if parameter.param_type_name == "option" else parameter.name.upper()
            rows.append((f"`{spelled}`", _default(parameter), _unlinked(getattr(parameter, "help", None) or "")))
        parts.append(_table(("argument or option", "default", "what it does"), rows))
    return "\n".join(parts)


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Each command by its words; those of a group one by one."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def settings() -> str:
    """Every key of the evaluation file, section by section, in the order in which the file is read."""
    parts: list[str] = []
    waiting: list[tuple[str, type[BaseModel]]] = [("", EvaluationSettings)]
    seen: dict[type[BaseModel], str] = {}
    while waiting:
        path, model = waiting.pop(0)
        first = seen.setdefault(model, path)
        title = path or "The file"
        said, documented = _documented(model)
        if first != path:
            parts.append(f"## {title}\n\nIts keys are those of [`{first}`](#{_anchor(first)}).\n")
            continue
        parts.append(f"## {title}\n\n{said}\n")
        above = [each for each in model.__mro__[1:] if issubclass(each, Strict) and each is not Strict]
        found_words = " ".join([said, *(_documented(each)[0] for each in above)])
        rows = []
        for name, info in model.model_fields.items():
            description = info.description or documented.get(name) or _sentence_on(name, found_words)
            name = info.serialization_alias or name
            place, inner = f"{path}.{name}".strip("."), list(_models(info.annotation))
            waiting.extend((place, found) for found in inner)
            if inner:
                opening = _documented(inner[0])[0].split("\n\n")[0]
                description = f"[{place}](#{_anchor(place)}): {description or opening}"
            rows.append((f"`{name}`", f"`{_type(info.annotation)}`", _default_of(info), description))
        parts.append(_table(("key", "type", "default", "meaning"), rows))
    return "\n".join(parts)


def _anchor(path: str) -> str:
    """As pages and forges make it of a heading."""
    return path.replace(".", "")


def metrics() -> str:
    """Every metric with a meaning, as reports and MLflow explain it."""
    rows = [
        (
            f"`{metric.name}`",
            metric.section,
            metric.label,
            metric.unit,
            _better(metric),
            _with_interval(metric.reading, metric.interval),
        )
        for metric in METRICS.values()
    ]
    return _table(("metric", "section", "in tables", "unit", "better", "how to read it"), rows)


def _better(metric: Metric) -> str:
    return metric.better if isinstance(metric.better, str) else f"{metric.better:g}"


def _with_interval(reading: str, interval: str) -> str:
    return f"{reading} Interval: {interval}." if interval else reading


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [head, tuple("---" for _ in head), *rows]
    table = "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)
    return f'<div class="reference" markdown>\n\n{table}\n\n</div>\n'


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _unlinked(text: str) -> str:
    """Brackets as they are: Markdown takes ``[A] [B]`` for a link."""
    return re.sub(r"\[([^\]]*)\](?!\()", r"\\[\1\\]", text)


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    return "" if value is None or value is False or value == () or callable(value) else f"`{value}`"


def _default_of(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.default if info.default is not PydanticUndefined else None
    return "" if value is None or value in ({}, []) or isinstance(value, BaseModel) else f"`{value}`"


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models(inner)


def _type(annotation: Any) -> str:
    if annotation is type(None):
        return "null"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    if annotation == MetricName:
        return " or ".join(metric_names())
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(inner[0])
    if origin is typing.Literal:
        return " or ".join(str(value) for value in inner)
    if origin in (list, tuple):
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return "mapping"
    if inner:
        return " or ".join(dict.fromkeys(_type(item) for item in inner if item is not type(None)))
    return str(getattr(annotation, "__name__", annotation))


def _sentence_on(name: str, said: str) -> str:
    """The first sentence that speaks of a key."""
    sentences = re.split(r"(?<=[.;]) (?=[A-Z`])", " ".join(said.split()))
    return next((sentence for sentence in sentences if f"``{name}``" in sentence), "")


def _documented(model: type[BaseModel]) -> tuple[str, dict[str, str]]:
    """A model's docstring, and what it or the strings below its fields say of each."""
    text = re.sub(r"\nAttributes:\n((?: {4}.*\n?)*)", lambda m: "\n" + textwrap.dedent(m[1]), _cleaned(model))
    named: dict[str, str] = {}
    lines = []
    for paragraph in re.split(r"\n(?! )", text):  # a line with what is indented below it
        names, _, meaning = paragraph.partition(": ")
        keys = [name.strip() for name in names.split(",")]
        if meaning and set(keys) <= set(model.model_fields):
            named |= dict.fromkeys(keys, meaning)
        else:
            lines.append(paragraph)
    return "\n".join(lines).strip(), named | _attribute_docstrings(model)


def _cleaned(model: type[BaseModel]) -> str:
    return inspect.cleandoc(model.__doc__ or "")


def _attribute_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Strings that stand below a field, which Python itself throws away."""
    found: dict[str, str] = {}
    for owner in model.__mro__:
        if owner in (BaseModel, object) or not owner.__module__.startswith("congruence"):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found.setdefault(ast.unparse(field.target), str(text.value.value))
    return found


PAGES: dict[str, Callable[[], str]] = {"commands": commands, "settings": settings, "metrics": metrics}
MADE = "<!-- what follows is written by: python docs/references.py -->\n"


def page(name: str) -> tuple[Path, str]:
    """A reference page: its file, and its text as it should be."""
    path = Path(__file__).parent / "reference" / f"{name}.md"
    head, _, _ = path.read_text().partition(MADE)
    return path, f"{head}{MADE}\n{PAGES[name]().strip()}\n"


if __name__ == "__main__":
    for name in PAGES:
        path, text = page(name)
        path.write_text(text)
