"""A matcher follows one answer through its grammar.

What it knows depends on the answer's tokens alone: where it was told of more than the answer has, or made to fail by a
draft that leads nowhere, it starts over from them.

Shapes: S positions, W words of 32 bits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from outpace.engine.grammars.compiler import Compiled
from outpace.engine.grammars.notation import only_ends, reason
from outpace.wording import count_of

Words = npt.NDArray[np.uint32]


class Matcher:
    """The state of one request's answer.

    Args:
        compiled: its grammar.
        ends: token ids that end the answer where it is complete.
    """

    def __init__(self, compiled: Compiled, ends: Collection[int]) -> None:
        self.compiled = compiled
        self._ends = tuple(ends)
        self._at: LLMatcher | None = None
        self._num_read = 0
        self.closed_at: int | None = None
        """After so many tokens the answer is complete and nothing may follow."""
        self.failure: str | None = None
        """Why no answer can be given."""

    def forget(self) -> None:
        """What was read may not be what the answer has."""
        self._at, self.closed_at, self.failure = None, None, None

    def after(self, answer: Sequence[int]) -> LLMatcher:
        """The library's state behind an answer's tokens, none of which ended it."""
        if self._at is None or self._num_read > len(answer):
            self._at, self._num_read = self.compiled.start.deep_copy(), 0
        if self._num_read < len(answer):
            self._at.consume_tokens(list(answer[self._num_read :]))
            self._num_read = len(answer)
        return self._at

    def read(self, answer: Sequence[int], run: Sequence[int], stops: Collection[int]) -> int:
        """How many tokens of a run belong to the answer: all up to where it is closed, or stopped, or failed.

        Args:
            answer: its tokens before the run.
            run: what was chosen behind it.
            stops: token ids that end the answer.
        """
        if self.failure is not None:
            return 0
        state = self.after(answer)
        for place, token in enumerate(run):
            if token in stops:
                return place + 1
            if not state.consume_token(token):
                self._fail(len(answer) + place, state.get_error())
                return place
            self._num_read += 1
            if self._is_closed(state):
                self.closed_at = len(answer) + place + 1
                return place + 1
        return len(run)

    def _is_closed(self, state: LLMatcher) -> bool:
        """Nothing but the end may follow. The library sees that at once or, at times, only when it looks for tokens."""
        if not state.is_accepting():
            return False
        if state.is_stopped():
            return True
        mask = self._mask(state).view(np.uint8)
        return not state.is_error() and only_ends(mask, self.compiled.num_ids)

    def _fail(self, num_tokens: int, error: str) -> None:
        self._at = None
        self.failure = (
            f"grammar: after {count_of(num_tokens, 'token')} of the answer no token was left that it admits "
            f"({reason(error)}); relax it, or bad_words, min_tokens and stop_token_ids"
        )

    def fill(self, answer: Sequence[int], drafts: Sequence[int], line_SW: Words) -> None:
        """Once more, one by one, the masks of a line on which the library failed: none from where it does.

        A position without any leaves no token to choose; `read` finds that out if the answer comes there. Where the
        library raises, the request has failed.
        """
        self._at = None
        line_SW[:] = 0
        try:
            self._fill(self.after(answer), drafts, line_SW)
        except Exception as error:
            self.failure = f"grammar: after {count_of(len(answer), 'token')} of the answer it raised {error!r:.300}"
        self._at = None

    def _fill(self, state: LLMatcher, drafts: Sequence[int], line_SW: Words) -> None:
        for place in range(len(line_SW)):
            found = self._mask(state)
            if state.is_error():
                break
            line_SW[place] = found
            if place >= len(drafts) or not state.try_consume_tokens([drafts[place]]):
                break

    def admit_ends(self, line_SW: Words) -> None:
        """Where the answer is complete, what ends it is admitted."""
        word, bit = divmod(self.compiled.num_ids, 32)
        complete_S = line_SW[:, word] >> np.uint32(bit) & np.uint32(1)
        for end in self._ends:
            line_SW[:, end // 32] |= complete_S << np.uint32(end % 32)

    def _mask(self, state: LLMatcher) -> Any:
        return np.frombuffer(state.compute_bitmask(), dtype=np.uint32)
