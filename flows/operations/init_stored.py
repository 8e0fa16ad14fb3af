"""`congruence init` of predictions that production stored: a file that judges them without the models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from congruence.flows.operations.init_file import (
    ENCODERS,
    KEY_NAMES,
    NAMES_A_ROW,
    SEEN_ROWS,
    Roles,
    columns_roles,
    in_yaml,
    relative_address,
)
from congruence.tasks.data.locations import is_text
from congruence.tasks.data.sources import first_rows
from congruence.tasks.readers.columns import predicted_columns
from congruence.tasks.runtime.errors import SettingsError

_VERSIONS = ("model_version", "version", "model", "model_id", "model_name", "scored_by")
_VARIANCES = ("var", "variance", "sigma2", "y_var", "pred_var")


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
    key = _key(rest, version, outcomes)
    rest = rest.drop_columns([name for name in (version, time, key) if name is not None])
    lines = ["predictions:    # read where they were stored: no model is loaded"]
    lines.append(f"  from: {in_yaml(relative_address(data, output))}")
    lines += _line("key", key, "id", "names what was predicted: labels and versions meet on it")
    lines += _line("version", version, "model_version", "which version predicted; each is judged on its own rows")
    lines += _line("time", time, "scored_at", "when; `watch` looks at one week after the other")
    lines.append("  # model: NAME    # of the registered model whose versions these are, where MLflow has them")
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
    lines += [*_family(predicted), *_split(roles, has_target=outcomes is None), ENCODERS[roles.input_kind]]
    if roles.input_kind == "features":
        lines.append("watch: {in_process_rows: 5000}    # periods of fewer rows are evaluated without a cluster")
    lines.append("")
    lines += [
        "# gate:    # may a version replace another one? exit status 3: no, 4: undecided",
        "#   baseline: NAME OF A VERSION",
        "#   not_worse_on: [nll_mean]",
        "# home: .congruence    # where embeddings, copies of rows and MLflow's database are stored",
    ]
    return "\n".join(lines) + "\n"


def _line(name: str, found: str | None, example: str, comment: str) -> list[str]:
    said = f"{name}: {in_yaml(found)}" if found is not None else f"# {name}: {example}"
    return [f"  {said}    # {comment}"]


def _key(rest: pa.Table, version: str | None, outcomes: pa.Table | None) -> str | None:
    """The column that names a row: one that the outcomes have, too, first."""
    named = [
        field.name
        for field in rest.schema
        if (field.name.lower() in KEY_NAMES or NAMES_A_ROW.search(field.name)) and field.name != version
        if pa.types.is_integer(field.type) or is_text(field.type)
    ]
    shared = [] if outcomes is None else [name for name in named if name in outcomes.column_names]
    return next(iter([*shared, *named]), None)


def _outcome(outcomes: pa.Table, key: str, target: str | None) -> tuple[str, str]:
    """The key and the target of a table of outcomes."""
    names = [str(name) for name in outcomes.column_names]
    joined = key if key in names else _key(outcomes, None, None)
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
    if len(predicted) > 2 or any(character.isdigit() for character in "".join(predicted[:1])):
        return [f"  # {', '.join(predicted)} are read as quantiles by their names"]
    location, spread = predicted
    columns = in_yaml({"loc": location, "scale": spread})
    return [
        "  family: normal    # check: the family is a guess",
        f"  columns: {columns}",
        *(["  transforms: {scale: sqrt}    # a variance"] if spread.lower() in _VARIANCES else []),
    ]


def _split(roles: Roles, *, has_target: bool) -> list[str]:
    slices = (
        f"    slices: {in_yaml(roles.slices)}    # groups that are reported one by one"
        if roles.slices
        else "    # slices: [city]    # columns whose values are reported one by one"
    )
    return [
        "splits:",
        "  - name: production",
        f"    input: {in_yaml(roles.input)}    # what the encoder reads",
        f"    input_kind: {roles.input_kind}    # image, text or features",
        *([f"    target: {in_yaml(roles.target)}    # rows without one yet are left out"] if has_target else []),
        slices,
    ]
