"""The base of every settings model: unknown keys are refused and values never change after validation."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A frozen settings model that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)
