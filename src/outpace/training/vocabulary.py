"""Which target tokens the drafter can propose: the most frequent ones of what the target itself writes.

The draft head is most of a small drafter's cost, and it grows with this number; every token left out is a certain
miss. So the size follows from coverage: the smallest that leaves few tokens of the answers out.

Legend: V target vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outpace.errors import ConfigError
from outpace.training.conversations import Conversation, Ints

_SIZE_STEP = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVocabulary:
    """Target ids in ascending order, so that `d2t` offsets never fall, and the share of answer tokens they cover."""

    target_ids_V: Tensor
    coverage: float


def count_tokens(conversations: Iterable[Conversation], vocab_size: int) -> Ints:
    """How often each id occurs among assistant tokens, int64 [V]."""
    written = [c.tokens[first:end] for c in conversations for first, end in c.spans]
    return np.bincount(np.concatenate(written), minlength=vocab_size) if written else np.zeros(vocab_size, np.int64)


def choose_vocabulary(
    counts: Ints,
    *,
    size: int | None = None,
    coverage: float = 0.985,
    max_size: int = 16384,
    always: Sequence[int] = (),
) -> DraftVocabulary:
    """Chooses draft ids by frequency; ids that never occur fill up from the low end, where byte-pair tokens are common.

    Args:
        counts: of each target id, from `count_tokens`.
        size: how many ids; None takes the smallest multiple of 1024 that reaches `coverage`, up to `max_size`.
        coverage: share of counted tokens to reach.
        max_size: upper limit when `size` is None.
        always: ids that are in whatever their count, such as the end of an answer.

    Raises:
        ConfigError: nothing was counted, or `size` is out of range.
    """
    V = len(counts)
    if counts.sum() == 0:
        raise ConfigError("no answer token was counted; the draft vocabulary is chosen from answers: give some")
    boosted = counts.copy()
    boosted[list(always)] = counts.sum() + 1
    order = np.argsort(-boosted, kind="stable")
    covered = np.cumsum(counts[order]) / counts.sum()
    if size is None:
        needed = int(np.searchsorted(covered, coverage)) + 1
        size = min(V, max_size, -(-needed // _SIZE_STEP) * _SIZE_STEP)
    if not 1 <= size <= V:
        raise ConfigError(f"the draft vocabulary is {size}; it must lie in 1 … {V}, the target's vocabulary")
    return DraftVocabulary(
        target_ids_V=torch.from_numpy(np.sort(order[:size])).to(torch.int64), coverage=float(covered[size - 1])
    )
