"""`congruence init`: an evaluation file from a data set and, where there is one, a registered model; with comments.

Data with columns of predictions are taken as what production stored: their file judges them without the models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from congruence.flows.operations.columns import SEEN_ROWS, TARGET_NAMES, ModelFacts, Roles, columns_roles, may_name_rows
from congruence.tasks.data.sources import first_rows
from congruence.tasks.readers.columns import numbered_draws, predicted_columns
from congruence.tasks.runtime.errors import SettingsError

_VERSIONS = ("model_version", "version", "model", "model_id", "model_name", "scored_by")
_VARIANCES = ("var", "variance", "sigma2", "y_var", "pred_var")
ENCODERS = {
    "image": (
        "encoder: {kind: open_clip, model: ViT-B-32, pretrained: laion2b_s34b_b79k}\n"
        "# offline: {kind: statistics} needs no weights; image backbones: kind timm; model compact knows digits only"
    ),
    "text": "encoder: {kind: open_clip_text, model: ViT-B-32, pretrained: laion2b_s34b_b79k}",
    "features": "encoder: {kind: identity}    # each feature, standardised by its mean and scale on the split",
}

_DESIGN = {
    "groups": ("patient", "rows of one value belong together: p-values and intervals take them as one"),
    "time": ("timestamp", "the order of the rows: p-values and intervals allow for neighbours that are alike"),
    "weight": ("w", "how much each row counts in means"),
    "exposure": ("years", "what each count is of, such as insured years: for models of rates"),
}


def write_evaluation(
    data: str,
    output: Path,
    *,
    model: str | Sequence[str] | None = None,
    target: str | None = None,
    overwrite: bool = False,
    text: str | None = None,
) -> str:
    """Write an evaluation file for ``data`` to ``output``, and return its text.

    Only the schema and the first rows of the data are read; a model is asked for one of them.

    Args:
        data: address of a labelled split, in any format that splits have.
        output: the file to write; local addresses in it are relative to its folder.
        model: versions, aliases or names in the registry that MLflow points at.
        target: the column to predict, where neither its name nor the model tells.
        overwrite: an existing file may be replaced.
        text: what to write, where it is known.

    Raises:
        SettingsError: the file exists, or the target or the inputs cannot be inferred; names the columns.
        SplitError: no such data.
        RegistryError: no such model.
    """
    from congruence.tasks.settings.evaluation import EvaluationSettings
    from congruence.tasks.settings.parts import checked

    if output.exists() and not overwrite:
        raise SettingsError(f"{output}: exists; give another name with --output, or --force to replace it")
    text = text or _of_models(data, output, model, target)
    # Read as the commands will read it.
    checked(EvaluationSettings, yaml.safe_load(text), str(output))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    return text


def _of_models(data: str, output: Path, model: str | Sequence[str] | None, target: str | None) -> str:
    first = first_rows(data, SEEN_ROWS)
    if first.num_rows == 0:
        raise SettingsError(f"{data}: holds no rows; give at least one")
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
    from congruence.tasks.contract.loading import METADATA_KEY, resolved_contract
    from congruence.tasks.models.predictions import ServedVersion, warm_model
    from congruence.tasks.models.registry import select

    version = select(uri)[-1]
    info = get_model_info(version.uri)
    schemas = (info.signature.inputs, info.signature.outputs) if info.signature is not None else (None, None)
    inputs, outputs = (tuple(schema.input_names()) if schema is not None else () for schema in schemas)
    described = METADATA_KEY in (info.metadata or {})
    facts = ModelFacts(uri, inputs, outputs, described, has_signature=bool(inputs))
    if described and inputs:
        return facts
    try:
        model = warm_model(ServedVersion(version, resolved_contract(version)))
        facts = replace(facts, asked_by=model.asked_by())
        if row is None:
            return facts
        rest = row.drop(columns=[name for name in (target, *TARGET_NAMES) if name in row.columns])
        facts = replace(facts, reads=model.predict(rest).family)
    except ContractError:  # `congruence validate` says why
        return facts
    if facts.has_signature:
        return facts
    for name in rest.columns:
        try:
            model.predict(rest.drop(columns=name))
            rest = rest.drop(columns=name)
        except ContractError:  # it needs that one
            continue
    return replace(facts, inputs=tuple(map(str, rest.columns)))


def evaluation_text(data: str, roles: Roles, *models: ModelFacts | None) -> str:
    """The evaluation file, with a comment on every line that a person may want to change."""
    named = [model for model in models if model is not None]
    more = f"; could be, too: {', '.join(roles.more_slices)}" if roles.more_slices else ""
    lines = [
        *_models(named, roles),
        "splits:",
        "  - name: test",
        f"    uri: {in_yaml(data)}",
        *_inputs(roles),
        f"    target: {in_yaml(roles.target)}",
        _entry("model_inputs", roles.model_inputs, "[a, b]", "what the model is given; by default what is encoded"),
        _entry("key", roles.key, "id", "names each row in reports; by default its number does"),
        _entry("slices", roles.slices, "[city]", f"columns whose values are reported one by one{more}"),
        *(_entry(role, roles.design.get(role), *said) for role, said in _DESIGN.items()),
        ENCODERS[roles.input_kind],
        *(_predictions(named[0] if named else ModelFacts("")) if len(named) < 2 else ()),
        "",
        "# protocol: exact    # or preprint, ecai: values of different protocols do not compare",
        "# gate:    # may a version replace the one in use? exit status 3: no, 4: undecided",
        "#   maximum: {cce_mean: 0.05}",
        "#   baseline: champion",
        "#   not_worse_on: [cce_mean, nll_mean]",
        "# home: .congruence    # where embeddings, predictions and MLflow's database are stored",
    ]
    return "\n".join(lines) + "\n"


def _entry(name: str, value: Any, example: str, comment: str, indent: int = 4) -> str:
    """A line of the file; a comment with an example of it where there is no value."""
    said = f"{name}: {in_yaml(value)}" if value else f"# {name}: {example}"
    return f"{' ' * indent}{said}    # {comment}"


def _inputs(roles: Roles) -> list[str]:
    unused = f"; without {in_yaml(roles.left_out)[1:-1]}" if roles.left_out else ""
    if roles.predicted:
        shown = in_yaml(roles.predicted)[1:-1]
        unused += f"; not {shown}, called as predictions: to judge these, name them under predictions with from"
    return [
        f"    input: {in_yaml(roles.input)}    # what the encoder reads{unused}",
        f"    input_kind: {roles.input_kind}    # image, text or features",
    ]


def _models(models: Sequence[ModelFacts], roles: Roles) -> Iterator[str]:
    """One line for a model, or for each of several with how it is read."""
    if len(models) < 2:
        name = models[0].uri if models else "models:/NAME@ALIAS"
        yield f"models: [{in_yaml(name)}]    # models:/name/3, models:/name@alias, or a name for all of its versions"
        return
    yield "models:    # models:/name/3, models:/name@alias, or a name for all of its versions"
    given = roles.model_inputs or ([roles.input] if isinstance(roles.input, str) else roles.input)
    for model in models:
        entry: dict[str, Any] = {"uri": model.uri}
        if model.describes_itself:
            said = "its own metadata say how it is read"
        elif model.asked_by or model.reads:
            said = f"read from {model.asked_by}" if model.asked_by else f"its answer is read as {model.reads}"
        else:
            entry["predictions"] = {"family": "normal", "columns": {"loc": "mu", "scale": "sigma"}}
            gives = f"; it gives {', '.join(model.outputs)}" if model.outputs else ""
            said = f"check: how it is read is a guess{gives}"
        if not model.has_signature and model.inputs and set(model.inputs) != set(given):
            entry["model_inputs"] = list(model.inputs)
        yield f"  - {in_yaml(entry if len(entry) > 1 else model.uri)}    # {said}"


def _predictions(model: ModelFacts) -> list[str]:
    if model.describes_itself:
        return ["# predictions: the version's own metadata say how its output is read"]
    if model.asked_by:
        return [f"# predictions: nothing to say; the distributions are read from {model.asked_by}"]
    if model.reads:
        return [f"# predictions: nothing to say; its answer is read as {model.reads}"]
    if {"loc", "scale"} <= set(model.outputs):
        return ["predictions: {family: normal, columns: {loc: loc, scale: scale}}    # check: the family is a guess"]
    said = f" it gives {', '.join(sorted(model.outputs))}" if model.outputs else ""
    return [
        f"# predictions: {{family: normal, columns: {{loc: mu, scale: sigma}}}}    # how the output is read:{said}",
        "#   or what its native model is asked: {method: pred_dist}; needed unless log_predictive_model logged it",
    ]


def stored_evaluation_text(
    data: str, output: Path, *, target: str | None = None, targets: str | None = None
) -> str | None:
    """Returns an evaluation file for a table of stored predictions; None where no columns are called as such.

    Args:
        data: the address of the table.
        output: where the file will lie: local addresses in it are relative to its folder.
        target: the column of the outcome, where its name does not tell.
        targets: the address of a table with the outcomes, where they are not in the first.

    Raises:
        SettingsError: the outcome, the inputs or the key of a table of outcomes cannot be inferred; names the columns.
    """
    first = first_rows(data, SEEN_ROWS)
    names = [str(name) for name in first.column_names]
    predicted = predicted_columns(names)
    if not predicted:
        if targets is None:
            return None
        raise SettingsError(
            f"--targets: {data} has no columns that are called as those of a prediction (mu and sigma, mean and std, "
            f"q0.1 and q0.9); the columns are {', '.join(names)}; rename them, or name them under predictions.columns "
            "of a file that you write"
        )
    rest = first.drop_columns(predicted)
    version = next((name for wanted in _VERSIONS for name in rest.column_names if name.lower() == wanted), None)
    time = next((each.name for each in rest.schema if pa.types.is_temporal(each.type)), None)
    outcomes = None if targets is None else first_rows(targets, SEEN_ROWS)
    key = _stored_key(rest, version, outcomes)
    rest = rest.drop_columns([name for name in (version, time, key) if name is not None])
    lines = ["predictions:    # read where they were stored: no model is loaded"]
    lines.append(f"  from: {in_yaml(relative_address(data, output))}")
    lines += [
        _entry("key", key, "id", "names what was predicted: labels and versions meet on it", 2),
        _entry("version", version, "model_version", "which version predicted; each is judged on its own rows", 2),
        _entry("time", time, "scored_at", "when; `watch` looks at one week after the other", 2),
        "  # model: NAME    # of the registered model whose versions these are, where MLflow has them",
    ]
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
        lines.append(f"  targets: {in_yaml(said)}    # outcomes; rows without one yet are left out")
    lines += [*_family(predicted), "splits:", "  - name: production", *_inputs(roles)]
    if outcomes is None:
        lines.append(f"    target: {in_yaml(roles.target)}    # rows without one yet are left out")
    lines.append(_entry("slices", roles.slices, "[city]", "columns whose values are reported one by one"))
    lines.append(ENCODERS[roles.input_kind])
    if roles.input_kind == "features":
        lines.append("watch: {in_process_rows: 5000}    # periods of fewer rows are evaluated without a cluster")
    lines += [
        "",
        "# gate:    # may a version replace another one? exit status 3: no, 4: undecided",
        "#   baseline: NAME OF A VERSION",
        "#   not_worse_on: [nll_mean]",
        "# home: .congruence    # where embeddings, copies of rows and MLflow's database are stored",
    ]
    return "\n".join(lines) + "\n"


def _stored_key(rest: pa.Table, version: str | None, outcomes: pa.Table | None) -> str | None:
    """The column that names a row: one that the outcomes have, too, first."""
    named = [field.name for field in rest.schema if may_name_rows(field) and field.name != version]
    shared = [] if outcomes is None else [name for name in named if name in outcomes.column_names]
    return next(iter([*shared, *named]), None)


def _outcome(outcomes: pa.Table, key: str, target: str | None) -> tuple[str, str]:
    """The key and the target of a table of outcomes."""
    names = [str(name) for name in outcomes.column_names]
    joined = key if key in names else _stored_key(outcomes, None, None)
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


def _family(predicted: Sequence[str]) -> list[str]:
    if numbered_draws(list(predicted)):
        return [
            f"  # {predicted[0]} to {predicted[-1]} are read as {len(predicted)} draws of the target by their names"
        ]
    if len(predicted) > 2 or any(character.isdigit() for character in "".join(predicted[:1])):
        return [f"  # {', '.join(predicted)} are read as quantiles by their names"]
    location, spread = predicted
    columns = in_yaml({"loc": location, "scale": spread})
    return [
        "  family: normal    # check: the family is a guess",
        f"  columns: {columns}",
        *(["  transforms: {scale: sqrt}    # a variance"] if spread.lower() in _VARIANCES else []),
    ]


def relative_address(data: str, output: Path) -> str:
    """As the file says it: relative to its folder where it lies below that, else in full."""
    if "://" in data:
        return data
    path, folder = Path(data).resolve(), output.resolve().parent
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def in_yaml(value: Any) -> str:
    """One YAML value on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("...\n").strip()
