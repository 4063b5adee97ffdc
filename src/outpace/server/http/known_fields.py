"""Which fields an object of a request may have, so that one which was mistyped can be told what was probably meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel


def known_fields(model: Any, location: Sequence[int | str], body: Any) -> set[str]:
    """Names that may stand where pydantic found one that may not.

    Args:
        model: what the body is to be.
        location: of the wrong name: the way to it in the body, and between the steps what pydantic chose of a union.
        body: the JSON value that was sent.
    """
    models = list(_models(model))
    for part in location[:-1]:
        if isinstance(body, list) and isinstance(part, int):
            body = body[part]
        elif isinstance(body, dict) and part in body:
            body = body[part]
            models = [inner for one in models for inner in _models(_annotations(one).get(str(part)))]
        else:
            models = [one for one in models if _is_chosen(one, part)] or models
    return {name for one in models for name in _annotations(one)}


def _annotations(model: type[BaseModel]) -> dict[str, Any]:
    """By the name that a request has for it."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Those that a value may be, or the elements of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _is_chosen(model: type[BaseModel], part: int | str) -> bool:
    """Whether it is the member of a union that `part` means: its name, or its tag."""
    return part == model.__name__ or any(part in get_args(kind) for kind in _annotations(model).values())
