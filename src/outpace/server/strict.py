"""What all models of requests share: types are strict, and nothing unknown is taken."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(max_length=512)]


class Strict(BaseModel):
    """Nothing unknown, nothing converted, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
