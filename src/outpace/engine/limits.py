"""What an engine can serve: everything that a request can do wrong is found here, before it is let in."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np

from outpace.config import SamplingParams
from outpace.errors import RequestError
from outpace.wording import count_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes that a request must fit into."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_context: int
    page_size: int
    num_pages: int
    """That one request may have."""

    def room(self, num_prompt: int) -> int:
        """Tokens that an answer may have behind a prompt: what context and pages leave, if anything."""
        return min(self.max_context, self.num_pages * self.page_size) - num_prompt

    def check(self, prompt_ids: Sequence[int], params: SamplingParams) -> int:
        """How many tokens a request may be answered with: `max_tokens`, or what the context leaves.

        Raises:
            RequestError: it cannot be served.
        """
        self._check_prompt(prompt_ids)
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("logit_bias", dict(params.logit_bias))
        for place, word in enumerate(params.bad_words):
            self._check_ids(f"bad_words[{place}]", word)
        self._check_bans(params)
        max_tokens = min(params.max_tokens, self.max_context - len(prompt_ids))
        self._check_pages(len(prompt_ids), max_tokens)
        return max_tokens

    def _check_prompt(self, prompt_ids: Sequence[int]) -> None:
        if not prompt_ids:
            raise RequestError("the prompt is empty; give at least one token")
        if len(prompt_ids) >= self.max_context:
            raise RequestError(
                f"the prompt has {count_of(len(prompt_ids), 'token')}; the context holds {self.max_context} and one "
                f"must be left for the answer: shorten the prompt to {self.max_context - 1}, or raise max_context"
            )
        self._check_ids("prompt", prompt_ids)

    def _check_ids(self, where: str, token_ids: Collection[int]) -> None:
        if _all_below(self.vocab_size, token_ids):
            return
        for place, token in enumerate(token_ids):
            if not _is_below(self.vocab_size, token):
                last = self.vocab_size - 1
                raise RequestError(f"{where}[{place}]: token id {token!s:.60} is unknown; ids are 0 … {last}")

    def _check_bans(self, params: SamplingParams) -> None:
        num_banned = len(params.bad_words)
        if params.min_tokens:
            num_banned += len({*params.stop_token_ids, *self.eos_token_ids})
        if num_banned >= self.vocab_size:
            raise RequestError(
                f"bad_words and min_tokens may ban {num_banned} tokens at once; the vocabulary has {self.vocab_size} "
                "and one must be left: shorten bad_words or stop_token_ids, or set min_tokens to 0"
            )

    def _check_pages(self, num_prompt: int, max_tokens: int) -> None:
        needed = -(-(num_prompt + max_tokens) // self.page_size)
        if needed > self.num_pages:
            raise RequestError(
                f"{count_of(num_prompt, 'prompt token')} and max_tokens {max_tokens} need "
                f"{count_of(needed, 'KV page')}; the engine has "
                f"{self.num_pages}: lower max_tokens, or raise num_pages or memory_fraction"
            )


def _all_below(limit: int, token_ids: Collection[int]) -> bool:
    """Whether they are integers in 0 … limit - 1. As an array: a million of them are looked through while others wait
    for their tokens."""
    try:
        ids = array("I", token_ids)
    except (OverflowError, TypeError):
        return False
    return not ids or int(np.asarray(ids).max()) < limit


def _is_below(limit: int, token_id: SupportsIndex) -> bool:
    """As `_all_below`, of one."""
    try:
        return 0 <= operator.index(token_id) < limit
    except TypeError:
        return False
