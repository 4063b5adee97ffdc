"""What all models of requests share: types are strict, and nothing unknown is taken."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, FailFast, Field

Name = Annotated[str, Field(max_length=512)]


class _FirstError(FailFast):
    """pydantic's own cannot be part of a union: it has no hash."""

    __hash__ = object.__hash__


FIRST_ERROR = _FirstError()
"""Of a list the first wrong element is told: an error for each of a million takes seconds and gigabytes."""


class Strict(BaseModel):
    """Nothing unknown, nothing converted, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
