"""Batches of conversations: rows of like length side by side, so that no attention mask and little padding is needed.

A row is one conversation from position 0, so causal attention is all the masking there is, in the target and in the
drafter, and positions are those of inference. Packing several conversations into a row would save the last few
percent of padding but needs a block mask at every attention.

The order of an epoch is a function of (seed, epoch) alone: a run resumes by skipping to a batch number.

Legend: B rows, T tokens a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from outpace.errors import ConfigError
from outpace.training.conversations import Conversation, Ints
from outpace.wording import count_of

_LENGTH_STEP = 64
_WINDOW_BATCHES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some conversations as one rectangle; padding is token 0, never assistant."""

    tokens_BT: Ints
    assistant_BT: NDArray[np.bool_]
    num_tokens: int
    """Without padding."""


class Dataset:
    """Conversations cut to `max_length` tokens, in reproducible batches of about `batch_tokens` places."""

    def __init__(self, conversations: Sequence[Conversation], *, batch_tokens: int, max_length: int, seed: int) -> None:
        assert max_length <= batch_tokens, "TrainConfig sees to it"
        self.rows = [row for c in conversations if (row := _cut(c, max_length)).num_assistant > 2]
        if not self.rows:
            raise ConfigError(
                f"none of {count_of(len(conversations), 'conversation')} has 3 assistant tokens within {max_length} "
                "tokens; give longer answers or raise max_length"
            )
        self.batch_tokens, self.seed = batch_tokens, seed

    @property
    def num_assistant(self) -> int:
        return sum(row.num_assistant for row in self.rows)

    @cached_property
    def num_batches(self) -> int:
        """Batches in an epoch; the same for every epoch up to a few, since rows meet others each time."""
        return len(self._plan(0))

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from batch number `start` on."""
        for members in self._plan(epoch)[start:]:
            yield self._batch(members)

    def _plan(self, epoch: int) -> list[Ints]:
        """Row numbers of each batch: shuffled, sorted by length within windows, cut, shuffled again."""
        random = np.random.default_rng((self.seed, epoch))
        order = random.permutation(len(self.rows))
        lengths = np.array([len(row.tokens) for row in self.rows])
        window = max(1, _WINDOW_BATCHES * self.batch_tokens // max(1, int(lengths.mean())))
        plan: list[Ints] = []
        for first in range(0, len(order), window):
            members = order[first : first + window]
            plan += _by_length(members[np.argsort(lengths[members], kind="stable")], lengths, self.batch_tokens)
        return [plan[place] for place in random.permutation(len(plan))]

    def _batch(self, members: Ints) -> Batch:
        rows = [self.rows[member] for member in members]
        width = _padded(max(len(row.tokens) for row in rows))
        tokens = np.zeros((len(rows), width), dtype=np.int64)
        assistant = np.zeros((len(rows), width), dtype=np.bool_)
        for place, row in enumerate(rows):
            tokens[place, : len(row.tokens)] = row.tokens
            assistant[place, : len(row.tokens)] = row.assistant()
        return Batch(tokens_BT=tokens, assistant_BT=assistant, num_tokens=sum(len(row.tokens) for row in rows))


def _by_length(members: Ints, lengths: Ints, batch_tokens: int) -> list[Ints]:
    """Cuts rows sorted by length so that rows × longest stays within the budget."""
    batches, first = [], 0
    for place, member in enumerate(members):
        if (place + 1 - first) * _padded(int(lengths[member])) > batch_tokens and place > first:
            batches.append(members[first:place])
            first = place
    return [*batches, members[first:]]


def _padded(length: int) -> int:
    return -(-length // _LENGTH_STEP) * _LENGTH_STEP


def _cut(conversation: Conversation, max_length: int) -> Conversation:
    if len(conversation.tokens) <= max_length:
        return conversation
    spans = tuple((first, min(end, max_length)) for first, end in conversation.spans if first < max_length)
    return Conversation(tokens=conversation.tokens[:max_length], spans=spans)


def split(
    conversations: Sequence[Conversation], *, num_held_out: int, seed: int
) -> tuple[list[Conversation], list[Conversation]]:
    """(training, held out): `num_held_out` conversations chosen by seed, at most a tenth of all."""
    count = min(num_held_out, len(conversations) // 10)
    held = set(np.random.default_rng((seed, 1)).permutation(len(conversations))[:count].tolist())
    return (
        [c for place, c in enumerate(conversations) if place not in held],
        [c for place, c in enumerate(conversations) if place in held],
    )
