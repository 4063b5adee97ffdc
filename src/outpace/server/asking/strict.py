"""What all models of requests share: types are strict, nothing unknown is taken, and null says nothing."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

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


PART = 1 << 14
"""Values of a list that are checked in one go: Python's lock is held meanwhile."""


def in_parts(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """A long list whose values are checked part by part, and stay as they are: others may go on in between."""
    if not isinstance(value, list) or len(value) <= PART:
        return check(value)
    for at in range(0, len(value), PART):
        try:
            check(value[at : at + PART])
        except ValidationError as error:
            raise ValidationError.from_exception_data(
                error.title, [_moved(one, at) for one in error.errors()]
            ) from None
    return value


def _moved(error: Any, at: int) -> InitErrorDetails:
    place, *inner = error["loc"]
    moved: InitErrorDetails = {"type": error["type"], "loc": (at + place, *inner), "input": error["input"]}
    return moved | {"ctx": error["ctx"]} if "ctx" in error else moved


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
