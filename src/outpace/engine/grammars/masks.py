"""The masks of one forward: which tokens each row may choose at each of its positions, given its own drafts.

The host makes them while the device verifies: what it needs to know of the forward is the drafts. Of several ranks the
first makes them for all.
"""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher
from torch import Tensor

from outpace.distributed.group import Group
from outpace.engine.sequence import Sequence
from outpace.kernels.mask import EVERY, num_words


@dataclass(frozen=True, slots=True)
class Masks:
    """Rows under a grammar: (place in the plan, sequence). Their tokens are all known."""

    lines: tuple[tuple[int, Sequence], ...]
    """None in a rank that takes the first one's masks."""

    def bring(self, allowed_BSW: Tensor, drafts: Listed[Listed[int]], num_ids: int, group: Group) -> Tensor:
        """Writes the masks on the device, of every rank of the group; those of other rows admit everything.

        Args:
            allowed_BSW: int32 on the device; S is 1 + K, W `mask_words`.
            drafts: K token ids a row; no row at all where nothing was drafted.
            num_ids: vocabulary of the target.
            group: every rank brings masks at the same moment.
        """
        if self.lines:
            num_rows, num_places, _ = allowed_BSW.shape
            words_BSW = blank(num_rows, num_places, num_ids, pinned=allowed_BSW.is_cuda)
            self.fill(words_BSW, drafts)
            allowed_BSW.copy_(words_BSW, non_blocking=True)
        return group.broadcast(allowed_BSW)

    def fill(self, words_BSW: Tensor, drafts: Listed[Listed[int]]) -> None:
        """Writes the masks of their rows; those behind a draft that the grammar does not admit mean nothing.

        Args:
            words_BSW: int32 on the host, contiguous, every bit set; S is 1 + K, W `mask_words`.
            drafts: K token ids a row; no row at all where nothing was drafted.
        """
        found = [(place, s.grammar, s.answer) for place, s in self.lines if s.grammar is not None]
        own = [list(drafts[place]) if drafts else [] for place, _, _ in found]
        states: list[tuple[LLMatcher, int]] = []
        try:
            states = [(matcher.after(answer), place * words_BSW.shape[1]) for place, matcher, answer in found]
            _compute(found[0][1].compiled.executor, states, own, words_BSW)
        except Exception:  # whose it is shows when each is asked alone
            states = []
        array_BSW = words_BSW.numpy().view(np.uint32)
        for at, (place, matcher, answer) in enumerate(found):
            if not states or states[at][0].is_error():
                matcher.fill(answer, own[at], array_BSW[place])
            matcher.admit_ends(array_BSW[place])


def _compute(
    executor: LLExecutor, states: list[tuple[LLMatcher, int]], own: list[list[int]], words_BSW: Tensor
) -> None:
    """Masks of states, each with its line, and behind each of its drafts; states are left as they were."""
    num_rows, num_places, width = words_BSW.shape
    target = (words_BSW.data_ptr(), 4 * width, num_rows * num_places)
    if num_places == 1:
        executor.unsafe_compute_mask_ptr(states, *target)
    else:
        asked = [(*state, drafts) for state, drafts in zip(states, own, strict=True)]
        executor.unsafe_compute_mask_ptr_with_draft_token(asked, *target)


THE_FIRST_RANKS = Masks(())
"""What a rank brings that does not follow answers itself."""


def masks_of(lines: Listed[tuple[int, Sequence]]) -> Masks | None:
    """Of the rows among them that are under a grammar; None if none is."""
    found = tuple((place, sequence) for place, sequence in lines if sequence.grammar is not None)
    return Masks(found) if found else None


def mask_words(num_ids: int) -> int:
    """Words of a mask: a bit for each token id, and one for the end."""
    return num_words(num_ids + 1)


def blank(num_rows: int, num_places: int, num_ids: int, *, pinned: bool) -> Tensor:
    """Masks that admit everything, on the host."""
    shape = (num_rows, num_places, mask_words(num_ids))
    return torch.full(shape, EVERY, dtype=torch.int32, pin_memory=pinned)
