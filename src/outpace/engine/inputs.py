"""What a caller may hand in: prompts and parameters in any of their forms, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from outpace.config import SamplingParams
from outpace.errors import RequestError
from outpace.wording import count_of

Prompt = str | Sequence[int]
Messages = Sequence[dict[str, str]]


def prompts_of(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A text, or token ids and nothing else, is one prompt; everything else is a list of prompts.

    Raises:
        RequestError: an item of the list is no prompt.
    """
    if isinstance(prompts, str):
        return [prompts]
    items: list[Any] = list(prompts)
    if items and all(map(is_id, items)):
        return [items]
    for place, item in enumerate(items):
        if not isinstance(item, Iterable) or isinstance(item, bytes | dict):
            raise RequestError(f"prompts[{place}] is {item!r:.60}; each prompt is a text or a list of token ids")
    return items


def is_id(item: object) -> bool:
    """Any kind of integer: NumPy's and torch's too, but no arrays of them."""
    return hasattr(item, "__index__") and not isinstance(item, bool) and getattr(item, "ndim", 0) == 0


def params_of(params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int) -> list[SamplingParams]:
    """Parameters for each prompt: the same for all, or one a prompt.

    Raises:
        RequestError: they are not as many as the prompts, or of another kind.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    listed = list(params)
    if len(listed) != num_prompts:
        raise RequestError(
            f"{len(listed)} sampling params for {count_of(num_prompts, 'prompt')}; give one, or one a prompt"
        )
    for item in listed:
        if not isinstance(item, SamplingParams):
            raise RequestError(f"{item!r:.60} is no SamplingParams; give one, or one a prompt")
    return listed
