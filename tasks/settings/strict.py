"""The base of every settings model: unknown keys are refused, values never change, secrets are never written out."""

from typing import Any

from pydantic import BaseModel, ConfigDict, FieldSerializationInfo, SerializerFunctionWrapHandler, field_serializer

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
