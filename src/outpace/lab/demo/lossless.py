"""Is speculative greedy output plain decoding's? Compares answers token for token, and explains the first difference.

Lossless means equal. In a 16-bit format a verify of k+1 tokens may round differently than k+1 steps of one (on a GPU;
where a CPU multiplies packed bf16 weights, the engine keeps their bits the same), so two logits that nearly tie may
swap. That is not lossless. It is equal up to rounding if plain decoding's gap between its best token and the token that
speculation chose is within the largest difference between plain and verify logits seen elsewhere in the run; the place
of the difference itself is left out, or a wrong verify would excuse itself. Behind a first difference the two answers
have different prefixes and nothing can be compared.

Shapes: N answer tokens, S tokens of one forward, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace import LLM, Chunk, SamplingParams
from outpace.lab.demo.observe import observed
from outpace.lab.timing.answer import Timing, time_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Taped:
    """An answer and the logits that each of its tokens was chosen from."""

    token_ids: tuple[int, ...]
    logits_NV: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where speculation chose another token than plain decoding."""

    prompt: int
    position: int
    """Place in the answer, from 0."""
    plain_token: int
    speculative_token: int
    gap: float | None
    """Plain decoding's logit of its own token minus that of the other; None if one answer merely ends there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the comparison of all answers came to."""

    equal_up_to_rounding: bool
    """Every answer is equal, or parts from plain decoding's where rounding explains it."""
    num_prompts: int
    num_equal: int
    num_tokens_equal: int
    max_logit_difference: float
    """Largest |plain - verify| over every logit of every position whose token agreed."""
    differences: tuple[Difference, ...]

    @property
    def lossless(self) -> bool:
        """Every answer is equal, token for token."""
        return not self.differences

    @property
    def largest_gap(self) -> float:
        """Between the two choices, over the first differences."""
        return max((d.gap for d in self.differences if d.gap is not None), default=0.0)


class Tape:
    """Answers prompts and keeps the logits, on an engine like the one it is given."""

    def __init__(self, llm: LLM) -> None:
        self._llm = observed(llm, self._keep)
        self._last: Tensor | None = None

    def _keep(self, call: str, logits: Tensor | None) -> None:
        if call == "logits":
            self._last = logits

    def record(
        self, prompt_ids: Sequence[int], params: SamplingParams, on_chunk: Callable[[Chunk], None] | None = None
    ) -> tuple[Taped, Timing]:
        """Answers one prompt. The last logits before a chunk are those that its tokens were chosen from."""
        rows: list[Tensor] = []

        def cut(chunk: Chunk) -> None:
            assert self._last is not None
            rows.append(self._last[0, : len(chunk.token_ids)].clone())
            if on_chunk is not None:
                on_chunk(chunk)

        timing = time_answer(self._llm, prompt_ids, params, cut)
        return Taped(token_ids=timing.token_ids, logits_NV=torch.cat(rows)), timing


def judge(pairs: Sequence[tuple[Taped, Taped]], *, exact: bool) -> Verdict:
    """Compares (plain, speculative) answers to the same prompts.

    Args:
        pairs: the answers.
        exact: rounding explains nothing (float32).
    """
    differences: list[Difference] = []
    max_difference, num_equal_tokens = 0.0, 0
    for prompt, (plain, speculative) in enumerate(pairs):
        num_same = _num_same(plain.token_ids, speculative.token_ids)
        num_equal_tokens += num_same
        max_difference = max(max_difference, _max_difference(plain, speculative, num_same))
        if num_same < max(len(plain.token_ids), len(speculative.token_ids)):
            differences.append(_difference(prompt, num_same, plain, speculative))
    excused = not exact and all(d.gap is not None and d.gap <= max_difference for d in differences)
    return Verdict(
        equal_up_to_rounding=not differences or excused,
        num_prompts=len(pairs),
        num_equal=len(pairs) - len(differences),
        num_tokens_equal=num_equal_tokens,
        max_logit_difference=max_difference,
        differences=tuple(differences),
    )


def _num_same(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _max_difference(plain: Taped, speculative: Taped, num_same: int) -> float:
    if num_same == 0:
        return 0.0
    difference = plain.logits_NV[:num_same].float() - speculative.logits_NV[:num_same].float()
    return float(difference.abs().max())


def _difference(prompt: int, position: int, plain: Taped, speculative: Taped) -> Difference:
    """An answer that merely ends where the other goes on has no token to compare."""
    if position >= min(len(plain.token_ids), len(speculative.token_ids)):
        return Difference(prompt=prompt, position=position, plain_token=-1, speculative_token=-1, gap=None)
    ours, other = plain.token_ids[position], speculative.token_ids[position]
    logits_V = plain.logits_NV[position].float()
    return Difference(
        prompt=prompt,
        position=position,
        plain_token=ours,
        speculative_token=other,
        gap=float(logits_V[ours] - logits_V[other]),
    )
