"""`congruence init`: an evaluation file from a data set and, where there is one, a registered model; with comments."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import yaml

from congruence.tasks.data.columns import design_problem, design_type_problem
from congruence.tasks.data.locations import is_text
from congruence.tasks.data.sources import REFERENCE, first_rows
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.scores.metrics.registry import is_taken

if TYPE_CHECKING:
    from congruence.tasks.settings.sections import ModelVersion

TARGET_NAMES = ("target", "y", "label")
KEY_NAMES = ("key", "id", "row_id", "uuid")
MOST_SLICES, MOST_GROUPS = 3, 30
SEEN_ROWS = 256
_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")

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


@dataclass(frozen=True)
class ModelFacts:
    """What MLflow knows of a version: its columns, whether its metadata spell the family, how a native one is asked.

    ``reads`` is the family of one row's answer, where that says itself what it is; ``has_signature`` whether the inputs
    are those of a signature, else they were found by asking for a row without each column.
    """

    uri: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    describes_itself: bool = False
    asked_by: str = ""
    reads: str = ""
    has_signature: bool = True


@dataclass(frozen=True)
class Roles:
    """The role of each column, as far as the data and the model tell."""

    target: str
    input_kind: Literal["image", "text", "features"]
    input: str | list[str]
    model_inputs: list[str] | None
    key: str | None
    slices: list[str]
    more_slices: list[str] = field(default_factory=list)
    design: Mapping[str, str] = field(default_factory=dict)


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
    if output.exists() and not overwrite:
        raise SettingsError(f"{output}: exists; give another name with --output, or --force to replace it")
    text = text or _of_models(data, output, model, target)
    check(text, output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)
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

    One whose metadata and signature say everything is not loaded.
    """
    from mlflow.models import get_model_info

    from congruence.tasks.contract.loading import METADATA_KEY
    from congruence.tasks.models.registry import select

    version = select(uri)[-1]
    info = get_model_info(version.uri)
    schemas = (info.signature.inputs, info.signature.outputs) if info.signature is not None else (None, None)
    inputs, outputs = (tuple(schema.input_names()) if schema is not None else () for schema in schemas)
    described = METADATA_KEY in (info.metadata or {})
    facts = ModelFacts(uri, inputs, outputs, described, has_signature=bool(inputs))
    return facts if described and inputs else _asked(facts, version, row, target)


def _asked(facts: ModelFacts, version: ModelVersion, row: Any, target: str | None) -> ModelFacts:
    """``facts`` with what a version, in a process of its own, says of itself and of one row."""
    from congruence.tasks.contract import ContractError
    from congruence.tasks.contract.loading import resolved_contract
    from congruence.tasks.models.worker import ServedVersion, warm_model

    try:
        model = warm_model(ServedVersion(version, resolved_contract(version)))
        facts = replace(facts, asked_by=model.asked_by())
        if row is None:
            return facts
        rest = row.drop(columns=[name for name in (target, *TARGET_NAMES) if name in row.columns])
        facts = replace(facts, reads=model.predict(rest).family)
    except ContractError:  # `congruence validate` says why
        return facts
    for name in rest.columns if not facts.has_signature else ():
        try:
            model.predict(rest.drop(columns=name))
            rest = rest.drop(columns=name)
        except ContractError:  # it needs that one
            continue
    return facts if facts.has_signature else replace(facts, inputs=tuple(map(str, rest.columns)))


def columns_roles(first: pa.Table, target: str | None, model: ModelFacts | None = None) -> Roles:
    """The roles of the columns, from their names, their types, the first rows and the columns that a model asks for.

    Raises:
        SettingsError: the target or the inputs cannot be inferred.
    """
    asked = [name for name in model.inputs if name in first.column_names] if model is not None else []
    chosen = _target(first, target, asked)
    key = _key(first, {chosen, *asked})
    design = proposed_design(first, {chosen, key}, asked, model is not None and bool(model.inputs))
    named = [column for role, column in design.items() if role != "exposure"]  # which is an input of the law as well
    rest = [name for name in first.column_names if name not in (chosen, key, *named)]
    images = [name for name in rest if _holds_images(first.column(name))]
    numbers = [name for name in (asked or rest) if name in rest and _holds_numbers(first.schema.field(name).type)]
    texts = [name for name in rest if _holds_texts(first.column(name))]
    if images:
        kind, given = "image", images[0]
    elif numbers:
        kind, given = "features", numbers
    elif texts:
        kind, given = "text", texts[0]
    else:
        raise SettingsError(
            f"no column of images, numbers or texts is left for the encoder to read; the columns are {_list(first)}"
        )
    read = [given] if isinstance(given, str) else given
    model_inputs = asked if asked and asked != read else None
    left = [name for name in rest if name not in read and name not in texts and not is_taken(name)]
    slices = [name for name in left if _groups(first.column(name))]
    slices.sort(key=lambda name: name not in asked)  # what the model reads first: there it can be wrong in its own way
    shown, more = slices[:MOST_SLICES], slices[MOST_SLICES:]
    return Roles(chosen, kind, given, model_inputs, key, shown, more, design)  # type: ignore[arg-type]


def evaluation_text(data: str, roles: Roles, *models: ModelFacts | None) -> str:
    """The evaluation file, with a comment on every line that a person may want to change."""
    named = [model for model in models if model is not None]
    lines = [
        *_models(named, roles),
        "splits:",
        "  - name: test",
        f"    uri: {in_yaml(data)}",
        f"    input: {in_yaml(roles.input)}    # what the encoder reads",
        f"    input_kind: {roles.input_kind}    # image, text or features",
        f"    target: {in_yaml(roles.target)}",
    ]
    if roles.model_inputs is not None:
        lines.append(f"    model_inputs: {in_yaml(roles.model_inputs)}    # what the model is given")
    else:
        lines.append("    # model_inputs: [a, b]    # what the model is given; by default what the encoder reads")
    lines.append(
        f"    key: {in_yaml(roles.key)}    # names each row in reports"
        if roles.key is not None
        else "    # key: id    # a column that names each row in reports; by default the row number"
    )
    lines.append(
        f"    slices: {in_yaml(roles.slices)}    # groups that are reported one by one"
        + (f"; could be, too: {', '.join(roles.more_slices)}" if roles.more_slices else "")
        if roles.slices
        else "    # slices: [city]    # columns whose values are reported one by one"
    )
    lines += _design_lines(roles.design)
    lines += [ENCODERS[roles.input_kind], *(_predictions(named[0] if named else None) if len(named) < 2 else ()), ""]
    lines += [
        "# protocol: exact    # or preprint, ecai: values of different protocols do not compare",
        "# gate:    # may a version replace the one in use? exit status 3: no, 4: undecided",
        "#   maximum: {cce_mean: 0.05}",
        "#   baseline: champion",
        "#   not_worse_on: [cce_mean, nll_mean]",
        "# home: .congruence    # where embeddings, predictions and MLflow's database are stored",
    ]
    return "\n".join(lines) + "\n"


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


def _design_lines(design: Mapping[str, str]) -> Iterator[str]:
    """Columns that say how rows were sampled; what was not found stands as a comment."""
    for role, (example, comment) in _DESIGN.items():
        if role in design:
            yield f"    {role}: {in_yaml(design[role])}    # {comment}"
        else:
            yield f"    # {role}: {example}    # {comment}"


def check(text: str, output: Path) -> None:
    """Raise SettingsError where the text is no evaluation file: it is read as the command will read it."""
    from congruence.tasks.settings.evaluation import EvaluationSettings
    from congruence.tasks.settings.parts import checked

    checked(EvaluationSettings, yaml.safe_load(text), str(output))


def _predictions(model: ModelFacts | None) -> list[str]:
    if model is not None and model.describes_itself:
        return ["# predictions: the version's own metadata say how its output is read"]
    if model is not None and model.asked_by:
        return [f"# predictions: nothing to say; the distributions are read from {model.asked_by}"]
    if model is not None and model.reads:
        return [f"# predictions: nothing to say; its answer is read as {model.reads}"]
    outputs = set(model.outputs) if model is not None else set()
    if {"loc", "scale"} <= outputs:
        return ["predictions: {family: normal, columns: {loc: loc, scale: scale}}    # check: the family is a guess"]
    said = f" it gives {', '.join(sorted(outputs))}" if outputs else ""
    return [
        f"# predictions: {{family: normal, columns: {{loc: mu, scale: sigma}}}}    # how the output is read:{said}",
        "#   or what its native model is asked: {method: pred_dist}; needed unless log_predictive_model logged it",
    ]


def _target(first: pa.Table, target: str | None, asked: Sequence[str]) -> str:
    names = [str(name) for name in first.column_names]
    if target is not None:
        if target not in names:
            raise SettingsError(f"--target: there is no column '{target}'; the columns are {_list(first)}")
        return target
    numbers = [name for name in names if _holds_numbers(first.schema.field(name).type) and name not in asked]
    named = [name for wanted in TARGET_NAMES for name in numbers if name.lower() == wanted]
    if named:
        return named[0]
    left = [name for name in numbers if name.lower() not in KEY_NAMES]
    if len(left) == 1:
        return left[0]
    raise SettingsError(f"--target: which column is to be predicted? The numeric ones are {', '.join(left) or 'none'}")


def _key(first: pa.Table, taken: set[str]) -> str | None:
    for name in map(str, first.column_names):
        column, kind = first.column(name), first.schema.field(name).type
        named = name.lower() in KEY_NAMES or NAMES_A_ROW.search(name) is not None
        if named and name not in taken and (pa.types.is_integer(kind) or is_text(kind)):
            values = column.to_pylist()
            if None not in values and len(set(values)) == len(values):
                return name
    return None


def _holds_numbers(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _holds_numbers(kind.value_type)
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _holds_images(column: pa.ChunkedArray) -> bool:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == REFERENCE:
        return True
    if pa.types.is_struct(kind):
        return "bytes" in {kind.field(place).name for place in range(kind.num_fields)}
    return is_text(kind) and all(str(value).lower().endswith(_IMAGE_ENDINGS) for value in column.to_pylist())


def _holds_texts(column: pa.ChunkedArray) -> bool:
    values = [value for value in column.to_pylist() if isinstance(value, str)] if is_text(column.type) else []
    return bool(values) and sum(len(value.split()) for value in values) / len(values) > 3.0


def _groups(column: pa.ChunkedArray) -> bool:
    """Whether the column divides the rows into a few groups of several rows each."""
    if not (is_text(column.type) or pa.types.is_boolean(column.type) or pa.types.is_dictionary(column.type)):
        return False
    values = column.to_pylist()
    return 1 < len(set(values)) <= min(MOST_GROUPS, len(values) // 4)


def relative_address(data: str, output: Path) -> str:
    """As the file says it: relative to its folder where it lies below that, else in full."""
    if "://" in data:
        return data
    path, folder = Path(data).resolve(), output.resolve().parent
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def in_yaml(value: Any) -> str:
    """One YAML value on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()


def _list(first: pa.Table) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in first.schema)


NAMES_A_ROW = re.compile(r"^ID(?=[A-Z_]|[a-z])|(?<=[a-z])(ID|Id)$|_(id|key)$|_(ID|KEY)$")
"""Words in a column's name that make it a key where its values differ: policy_id, IDpol, policyID."""

_GROUPS = ("group", "patient", "subject", "person", "participant", "customer", "user", "household", "session", "series")
_TIMES = ("time", "timestamp", "datetime", "date", "date_time")
_WEIGHTS = ("sample_weight", "sampling_weight", "survey_weight", "row_weight", "weights")
_EXPOSURES = ("exposure", "exposures", "time_at_risk", "person_years")


def proposed_design(
    first: pa.Table, taken: Collection[str | None], asked: Collection[str], inputs_are_known: bool
) -> dict[str, str]:
    """A column for each of groups, time, weight and exposure that the first rows show, by what it is.

    Args:
        first: some rows.
        taken: target and key.
        asked: what the model is given: an input is no weight, no group and no time.
        inputs_are_known: whether ``asked`` is all that the model is given; if not, "weight" may be somebody's weight.
    """
    weights = (*_WEIGHTS, "weight") if inputs_are_known else _WEIGHTS
    found: dict[str, str] = {}
    fits: dict[str, Callable[[str], bool]] = {
        "exposure": lambda name: name.lower() in _EXPOSURES,
        "weight": lambda name: name.lower() in weights and name not in asked,
        "time": lambda name: name not in asked and _is_time(name, first.column(name)),
        "groups": lambda name: name not in asked and _names_groups(name, first.column(name)),
    }
    for role in fits:
        for name in map(str, first.column_names):
            free = name not in taken and name not in found.values()
            if free and fits[role](name) and _is_usable(role, first.column(name)):
                found[role] = name
                break
    return found


def _is_usable(role: str, column: pa.ChunkedArray) -> bool:
    return design_type_problem(role, column.type) is None and design_problem(role, column.combine_chunks()) is None


def _is_time(name: str, column: pa.ChunkedArray) -> bool:
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return True
    if is_text(kind):
        return all(isinstance(value, str) and re.match(r"\d{4}-\d{2}", value) for value in column.to_pylist())
    return name.lower() in _TIMES and bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _names_groups(name: str, column: pa.ChunkedArray) -> bool:
    """Whether this looks like the id of something that several rows are of."""
    if not (pa.types.is_integer(column.type) or is_text(column.type)):
        return False
    if NAMES_A_ROW.search(name) is None and name.lower() not in ("id", *_GROUPS):
        return False
    values = column.to_pylist()
    return 1 < len(set(values)) < len(values)
