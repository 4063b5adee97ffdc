"""What all models of requests share: types are strict, nothing unknown is taken, and null says nothing."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator
from pydantic_core import PydanticCustomError

Name = Annotated[str, Field(max_length=512)]


class _FirstError(FailFast):
    """pydantic's own cannot be part of a union: it has no hash."""

    __hash__ = object.__hash__


FIRST_ERROR = _FirstError()
"""Of a list the first wrong element is told: an error for each of a million takes seconds and gigabytes."""


MAX_FIELDS = 128
"""Of one object: an error for each of a million unknown ones takes as long."""


def check_size(value: Any, most: int = MAX_FIELDS) -> Any:
    """Of an object with more fields that one thing is told, and none of them is looked at."""
    if isinstance(value, dict) and len(value) > most:
        told = {"found": len(value), "most": most}
        raise PydanticCustomError("too_many_fields", "it has {found} fields; at most {most} are taken", told)
    return value


class Strict(BaseModel):
    """Nothing unknown, nothing converted, no NaN. Null is the same as leaving a field out, under whatever name: many
    clients send null for all that they know of."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _says_little(cls, value: Any) -> Any:
        value = check_size(value)
        if isinstance(value, dict) and None in value.values():
            return {name: given for name, given in value.items() if given is not None}
        return value
