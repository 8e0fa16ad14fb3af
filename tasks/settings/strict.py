"""The base of every settings model, and settings in YAML: a file's keys, and a line for each that its model refuses."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    FieldSerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_serializer,
)

from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.masking import MASK, mask_text


class Strict(BaseModel):
    """A frozen settings model that refuses keys it does not know.

    Fields declared with ``repr=False`` may hold credentials: they are masked in JSON, which is what Prefect stores as
    a run's parameters and MLflow as provenance.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_serializer("*", mode="wrap", when_used="json", check_fields=False)
    def _masked(self, value: Any, handler: SerializerFunctionWrapHandler, info: FieldSerializationInfo) -> Any:
        declared = type(self).model_fields.get(info.field_name)
        if declared is None or declared.repr or value is None:
            return handler(value)
        is_address = info.field_name.endswith("uri")  # the host may be read; of other secrets nothing
        return mask_text(str(value)) if is_address else _without_secrets(value)


def _without_secrets(value: Any) -> Any:
    return {key: _without_secrets(item) for key, item in value.items()} if isinstance(value, dict) else MASK


Model = TypeVar("Model", bound=BaseModel)


def read_keys(path: Path, source: str, kind: str, keys: str, *, where_it_is_data: str = "") -> dict[str, Any]:
    """The keys of a YAML file.

    Args:
        path: of the file.
        source: what it is called in errors.
        kind: of file: evaluation or cluster.
        keys: such as it should have.
        where_it_is_data: what to do about a file that is no text.

    Raises:
        SettingsError: unreadable, not YAML, or without keys.
    """
    import yaml  # a report in a notebook has settings of its own and reads no file

    try:
        content = yaml.safe_load(path.read_text())
    except IsADirectoryError as error:
        raise SettingsError(f"{source}: is a folder; give the path of {kind} file") from error
    except OSError as error:
        raise SettingsError(f"{source}: cannot be read ({error.strerror}); give the path of {kind} file") from error
    except UnicodeDecodeError as error:
        no_file = f"no {kind.rpartition(' ')[2]} file"
        raise SettingsError(f"{source}: is not text, so it is {no_file}{where_it_is_data}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{source}: is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        found = "it is empty" if content is None else f"found {type(content).__name__}"
        raise SettingsError(f"{source}: expected keys such as {keys}, {found}")
    return content


def checked(model: type[Model], content: Mapping[str, Any], source: str) -> Model:
    """The settings that ``content`` gives.

    Raises:
        SettingsError: wrong keys or values; one line for each of them.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise SettingsError("\n".join(_described(model, source, item) for item in error.errors())) from error


def _described(model: type[BaseModel], source: str, problem: Any) -> str:
    """One line for one pydantic error: file, key, what is wrong, the value and the remedy."""
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = _keys_at(model, problem["loc"][:-1])
        close = difflib.get_close_matches(str(problem["loc"][-1]), known, 1)
        remedy = f"did you mean '{close[0]}'?" if close else f"known keys: {', '.join(known)}"
        return f"{source}: {place}: there is no such key; {remedy}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{source}: {place}: is missing; add it"
    given = problem.get("input")
    shown = "" if isinstance(given, (dict, list)) or problem["type"] == "value_error" else f" (found {given!r})"
    where = f"{source}: {place}" if place else source
    return f"{where}: {message[:1].lower()}{message[1:]}{shown}"


def _keys_at(model: Any, location: tuple[Any, ...]) -> list[str]:
    for part in location:
        if isinstance(part, int) or not hasattr(model, "model_fields") or part not in model.model_fields:
            continue
        model = _settings_model(model.model_fields[part].annotation)
    fields = getattr(model, "model_fields", {})
    return sorted(field.alias or name for name, field in fields.items())


def _settings_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = [_settings_model(argument) for argument in getattr(annotation, "__args__", ())]
    return next((model for model in inner if model is not None), None)
