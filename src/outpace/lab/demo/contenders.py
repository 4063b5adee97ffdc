"""What answers side by side in the demonstration: this engine, plainly and with its drafter, and its yardsticks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from outpace import LLM, SamplingParams
from outpace.lab.demo import reference
from outpace.lab.timing.answer import Timing, time_answer

ENGINE: dict[str, Any] = {"max_rows": 1, "prefix_reuse": False, "control": "fixed"}
"""One request at a time, no prefix kept, k drafts in every cycle: every answer is computed in full, each time alike."""

PLAIN, SPECULATIVE, TRANSFORMERS = "plain", "speculative", "transformers"

Contender = Callable[[Sequence[int]], Timing]
Loader = Callable[[SamplingParams], Contender]


def extras(plain: LLM) -> dict[str, Loader]:
    """The other plain number format, and transformers, where there are such; loaded only if there is time for them."""
    found: dict[str, Loader] = {}
    if plain.device.type == "cpu":
        other = "bfloat16" if dtype_of(plain) == "float32" else "float32"
        found[f"{PLAIN} {other}"] = partial(_load_plain, plain, other)
    if reference.available():
        found[named(TRANSFORMERS, plain)] = partial(_load_transformers, plain)
    return found


def _load_plain(like: LLM, dtype: str, params: SamplingParams) -> Contender:
    return answering(_plain_in(like.target.source.name, dtype, like), params)


def _load_transformers(like: LLM, params: SamplingParams) -> Contender:
    theirs = reference.Reference(like)
    return lambda ids: theirs.time_answer(ids, params.max_tokens)


def answering(llm: LLM, params: SamplingParams) -> Contender:
    return lambda ids: time_answer(llm, ids, params)


def _plain_in(model: str, dtype: str, like: LLM) -> LLM:
    return LLM(model, drafter=None, dtype=dtype, device=str(like.device), max_context=like.config.max_context, **ENGINE)


def named(kind: str, llm: LLM) -> str:
    """What answers, and in which number format."""
    return f"{kind} {dtype_of(llm)}"


def dtype_of(llm: LLM) -> str:
    """As it is written after a contender's kind."""
    return str(llm.dtype).removeprefix("torch.")
