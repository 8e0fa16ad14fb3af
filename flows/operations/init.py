"""`congruence init`: an evaluation file from a data set and, where there is one, a registered model; with comments.

Data with columns of predictions are taken as what production stored: their file judges them without the models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from congruence.flows.operations.columns import (
    SEEN_ROWS,
    TARGET_NAMES,
    ModelFacts,
    Roles,
    columns_roles,
    holds_draws,
    is_time,
    may_name_rows,
)
from congruence.tasks.contract.reading import columns_of_predictions
from congruence.tasks.data.inputs import is_number
from congruence.tasks.data.usable import first_rows
from congruence.tasks.readers.base import UnreadableOutputError
from congruence.tasks.readers.columns import called_as_moment, is_variance, told_by
from congruence.tasks.runtime.errors import SettingsError

_OF_ERROR = 200  # letters in a comment; `congruence validate` says all
_VERSIONS = ("model_version", "version", "model", "model_id", "model_name", "scored_by")


def write_evaluation(
    data: str,
    output: Path,
    *,
    model: str | Sequence[str] | None = None,
    target: str | None = None,
    targets: str | None = None,
    overwrite: bool = False,
) -> str:
    """Write an evaluation file for ``data`` to ``output``, and return its text.

    Only the schema and the first rows of the data are read; a model is asked for one of them. Without one, columns that
    are called as those of predictions are taken as stored ones. Local addresses are relative to the file's folder.

    Raises:
        SettingsError: the file exists, or the target or the inputs cannot be inferred; names the columns.
        SplitError: no such data.
        RegistryError: no such model.
    """
    from congruence.tasks.settings.evaluation import EvaluationSettings
    from congruence.tasks.settings.parts import checked

    if output.exists() and not overwrite:
        raise SettingsError(f"{output}: exists; give another name with --output, or --force to replace it")
    first = first_rows(data, SEEN_ROWS)
    if first.num_rows == 0:
        raise SettingsError(f"{data}: holds no rows; give at least one")
    predicted = [] if model else _predicted(first)
    if predicted or (targets is not None and not model):
        text = _of_stored(first, predicted, data, output, target, targets)
    else:
        text = _of_models(first, data, output, model, target)
    # Read as the commands will read it.
    checked(EvaluationSettings, yaml.safe_load(text), str(output))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    return text


def _predicted(first: pa.Table) -> list[str]:
    """The columns of predictions, as far as names tell: else the one column of draws in lists, or loc and scale."""
    names = [str(name) for name in first.column_names]
    lists = [each.name for each in first.schema if holds_draws(each)]
    if (told := columns_of_predictions(names)) or len(lists) == 1:
        return told or lists
    return ["loc", "scale"] if {"loc", "scale"} <= set(names) else []


def _of_models(first: pa.Table, data: str, output: Path, model: str | Sequence[str] | None, target: str | None) -> str:
    named = [model] if isinstance(model, str) else list(model or ())
    found = [model_facts(name, first.slice(0, 1).to_pandas(ignore_metadata=True), target) for name in named]
    asked = (
        replace(found[0], inputs=tuple(dict.fromkeys(name for one in found for name in one.inputs))) if found else None
    )
    return evaluation_text(relative_address(data, output), columns_roles(first, target, asked), *found)


def model_facts(uri: str, row: Any = None, target: str | None = None) -> ModelFacts:
    """What the registry, the model's description and the model itself, asked for one ``row``, say of a version.

    One whose metadata and signature say everything is not loaded; else it says it in a process of its own.
    """
    from mlflow.models import get_model_info

    from congruence.tasks.contract import ContractError
    from congruence.tasks.contract.model import METADATA_KEY, resolved_contract
    from congruence.tasks.contract.signature import tensor_width
    from congruence.tasks.models.processes import ServedVersion, warm_model
    from congruence.tasks.models.registry import select

    version = select(uri)[-1]
    info = get_model_info(version.uri)
    schemas = (info.signature.inputs, info.signature.outputs) if info.signature is not None else (None, None)
    named = (schema is not None and schema.has_input_names() for schema in schemas)  # a tensor has none
    inputs, outputs = (tuple(schema.input_names()) if has else () for schema, has in zip(schemas, named, strict=True))
    outputs = outputs or tuple(map(str, range(tensor_width(schemas[1]) or 0)))  # as the columns of an array are called
    described, width = METADATA_KEY in (info.metadata or {}), tensor_width(schemas[0])
    facts = ModelFacts(uri, inputs, outputs, described, has_signature=schemas[0] is not None, width=width)
    if described and facts.has_signature:
        return facts
    try:
        model = warm_model(ServedVersion(version, resolved_contract(version)))
        facts = replace(facts, asked_by=model.asked_by())
        if row is None:
            return facts
        rest = row.drop(columns=[name for name in (target, *TARGET_NAMES) if name in row.columns])
        if width is not None:
            rest = rest.select_dtypes("number").iloc[:, :width]
        facts = replace(facts, reads=model.predict(rest).family)
    except ContractError as error:
        unread = isinstance(error.__cause__, UnreadableOutputError)
        return facts if unread else replace(facts, refused=" ".join(str(error).split())[:_OF_ERROR])
    if facts.has_signature:
        return facts
    for name in rest.columns:
        try:
            model.predict(rest.drop(columns=name))
            rest = rest.drop(columns=name)
        except ContractError:  # it needs that one
            continue
    return replace(facts, inputs=tuple(map(str, rest.columns)))


def evaluation_text(data: str, roles: Roles, *models: ModelFacts) -> str:
    """The evaluation file, with a comment on every line that a person may want to change."""
    given = roles.model_inputs or ([roles.input] if isinstance(roles.input, str) else roles.input)
    entries = [_entry(model, given) for model in models]
    first = models[0] if models else ModelFacts("")
    count = 1 if isinstance(roles.input, str) else len(roles.input)
    asked = "what the model is given; by default what is encoded"
    if first.width not in (None, count):
        asked = f"needed: the model takes {first.width} numbers a row; name what it was trained on, in that order"
    return _filled("models.yaml", data=data, roles=roles, models=models, entries=entries, model=first, asked=asked)


def _filled(template: str, **values: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"yaml": in_yaml, "listed": lambda names: in_yaml(names)[1:-1]}
    return environment.get_template(template).render(**values)


def _entry(model: ModelFacts, given: Sequence[str]) -> tuple[str, str | dict[str, Any]]:
    """How one of several models is read, and what stands of it under ``models:``."""
    entry: dict[str, Any] = {"uri": model.uri}
    if model.describes_itself:
        said = "its own metadata say how it is read"
    elif model.asked_by or model.reads:
        said = f"read from {model.asked_by}" if model.asked_by else f"its answer is read as {model.reads}"
        said += f"; asked for a row: {model.refused}" if model.refused else ""
    elif model.refused:  # no word on columns that nobody has seen
        said = f"asked for a row: {model.refused}"
    else:
        entry["predictions"] = {"family": "normal", "columns": {"loc": "mu", "scale": "sigma"}}
        gives = f"; it gives {', '.join(model.outputs)}" if model.outputs else ""
        said = f"check: how it is read is a guess{gives}"
        if model.outputs and not {"mu", "sigma"} <= set(model.outputs):  # the guess would fail, for a lesser reason
            said = f"say how it is read, by predictions{gives}; `congruence validate` names the ways"
            del entry["predictions"]
    if not model.has_signature and model.inputs and set(model.inputs) != set(given):
        entry["model_inputs"] = list(model.inputs)
    return said, entry if len(entry) > 1 else model.uri


def _of_stored(
    first: pa.Table, predicted: Sequence[str], data: str, output: Path, target: str | None, targets: str | None
) -> str:
    """The file of a table of stored predictions, whose outcomes may lie in another."""
    names = [str(name) for name in first.column_names]
    if not predicted:
        raise SettingsError(
            f"--targets: {data} has no columns that are called as those of a prediction (mu and sigma, mean and std, "
            f"q0.1 and q0.9); the columns are {', '.join(names)}; rename them, or name them under predictions.columns "
            "of a file that you write"
        )
    rest = first.drop_columns(predicted)
    version = next((name for wanted in _VERSIONS for name in rest.column_names if name.lower() == wanted), None)
    moments = [each.name for each in rest.schema if not is_number(each.type)]
    time = next((name for name in moments if is_time(name, rest.column(name))), None)
    outcomes = None if targets is None else first_rows(targets, SEEN_ROWS)
    key = _stored_key(rest, version, outcomes)
    more = [name for name in rest.column_names if called_as_moment(name) and name != target]
    rest = rest.drop_columns([*(name for name in (version, time, key) if name is not None), *more])
    said = None
    if outcomes is None:
        roles = columns_roles(rest, target)
    else:
        if key is None:
            raise SettingsError(
                f"--targets: which column names a row in both tables? Those of {data} are {', '.join(names)}, those "
                f"of {targets} {', '.join(outcomes.column_names)}; call it alike in both, for example id"
            )
        joined, label = _outcome(outcomes, key, target)
        roles = columns_roles(rest.append_column(label, pa.nulls(len(rest), pa.float64())), label)
        said = {"uri": relative_address(str(targets), output), "key": joined, "target": label}
    roles = replace(roles, predicted=[*more, *roles.predicted])
    found = {"key": key, "version": version, "time": time, "targets": said, "predicted": predicted, "roles": roles}
    family = told_by(list(predicted))[0] or ("lists" if len(predicted) == 1 else "normal")
    data = relative_address(data, output)
    return _filled("stored.yaml", data=data, **found, family=family, variance=is_variance(predicted[-1]))


def _stored_key(rest: pa.Table, version: str | None, outcomes: pa.Table | None) -> str | None:
    """The column that names a row: first one that the outcomes have, too, or the only one, where its values differ.

    Without outcomes one that no version has twice: others, of which many rows are, such as a customer, name groups.
    """
    named = [field.name for field in rest.schema if may_name_rows(field) and field.name != version]
    if outcomes is None:
        beside = [] if version is None else [version]
        return next((name for name in named if len(rest.group_by([name, *beside]).aggregate([])) == len(rest)), None)
    others = [name for name in rest.column_names if name in outcomes.column_names and name != version]
    shared = [name for name in named if name in others]
    if not shared and len(others) == 1 and len(outcomes.column(others[0]).unique()) == len(outcomes):
        shared = others
    return next(iter([*shared, *named]), None)


def _outcome(outcomes: pa.Table, key: str, target: str | None) -> tuple[str, str]:
    """The key and the target of a table of outcomes."""
    names = [str(name) for name in outcomes.column_names]
    joined = key if key in names else next((each.name for each in outcomes.schema if may_name_rows(each)), None)
    numbers = [
        each.name
        for each in outcomes.schema
        if each.name != joined and (pa.types.is_floating(each.type) or pa.types.is_integer(each.type))
    ]
    found = target if target is not None else numbers[0] if len(numbers) == 1 else None
    if joined is None or found is None or found not in names:
        raise SettingsError(
            f"--target: which column of the outcomes is to be predicted? They have {', '.join(names)}; name one"
        )
    return joined, found


def relative_address(data: str, output: Path) -> str:
    """As the file says it: relative to its folder where it lies below that, else in full."""
    if "://" in data:
        return data
    path, folder = Path(data).resolve(), output.resolve().parent
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def in_yaml(value: Any) -> str:
    """One YAML value on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000, sort_keys=False)
    return text.removesuffix("...\n").strip()
