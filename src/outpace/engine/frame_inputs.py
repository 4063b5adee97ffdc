"""What a frame reads beside the state, in one buffer that never moves: row numbers, changes of the page table, and for
a prefill its chunks.

Shapes: B rows of the frame, S tokens a row, C changes that it takes, I = B + 3·C, M further numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.types import Changes


def changes_of(num_rows: int, num_tokens: int, page_size: int) -> int:
    """Pages that so many rows may need for as many more tokens each."""
    return num_rows * (1 + -(-num_tokens // page_size))


class FrameInputs:
    """int64 [I + M]: row numbers, then rows, columns and pages of the changes, then what else there is.

    What is not needed leads to the inert row.

    Args:
        num_rows: B.
        num_changes: C.
        inert: the row that belongs to nobody.
        device: where the buffer lies.
        more: the further numbers, as they are where nothing is asked.
    """

    def __init__(
        self, num_rows: int, num_changes: int, inert: int, device: torch.device, more: Sequence[int] = ()
    ) -> None:
        self._num_rows, self._num_changes, self._inert = num_rows, num_changes, inert
        self._buffer = torch.tensor([*self._listed((), Changes()), *more], device=device)
        self.rows_B, changes, self.more_M = self._buffer.split_with_sizes((num_rows, 3 * num_changes, len(more)))
        self.page_rows_C, self.columns_C, self.pages_C = changes.view(3, num_changes)

    def fit(self, changes: Changes) -> bool:
        """Whether the buffer takes these changes; rows that were filled it never takes."""
        return not changes.rows and len(changes.pages) <= self._num_changes

    def write(self, rows: Sequence[int], changes: Changes, more: Sequence[int] = ()) -> None:
        """For the next replay: at most B rows, changes that fit, and all of the further numbers. Replays before it
        still read what they were given.

        On a GPU the host does not wait.
        """
        listed = torch.tensor([*self._listed(rows, changes), *more])
        self._buffer.copy_(listed.pin_memory() if self._buffer.is_cuda else listed, non_blocking=True)

    def change(self, page_table_RP: Tensor) -> None:
        """Makes the changes."""
        page_table_RP[self.page_rows_C, self.columns_C] = self.pages_C

    def _listed(self, rows: Sequence[int], changes: Changes) -> list[int]:
        padding = [self._inert] * (self._num_rows - len(rows))
        unused = [0] * (self._num_changes - len(changes.pages))
        page_rows = [*changes.page_rows, *[self._inert] * len(unused)]
        return [*rows, *padding, *page_rows, *changes.page_columns, *unused, *changes.pages, *unused]


class PrefillInputs:
    """A `FrameInputs` whose further numbers are, for each row: tokens of its chunk, 1 where its prompt ends with it,
    and S tokens. A row that is not needed has one token, which the trash page takes.

    Args:
        num_rows: B.
        num_tokens: S.
        num_changes: C.
        inert: the row that belongs to nobody.
        device: where the buffer lies.
    """

    def __init__(self, num_rows: int, num_tokens: int, num_changes: int, inert: int, device: torch.device) -> None:
        self._num_rows, self._num_tokens = num_rows, num_tokens
        self._kept = FrameInputs(num_rows, num_changes, inert, device, self._listed((), ()))
        self.rows_B = self._kept.rows_B
        self.num_tokens_B, self.ends_B, tokens = self._kept.more_M.split_with_sizes(
            (num_rows, num_rows, num_rows * num_tokens)
        )
        self.tokens_BS = tokens.view(num_rows, num_tokens)
        self.fit, self.change = self._kept.fit, self._kept.change

    def write(
        self, rows: Sequence[int], changes: Changes, chunks: Sequence[Sequence[int]], ends: Sequence[bool]
    ) -> None:
        """As `FrameInputs.write`; chunks of at most S tokens."""
        self._kept.write(rows, changes, self._listed(chunks, ends))

    def _listed(self, chunks: Sequence[Sequence[int]], ends: Sequence[bool]) -> list[int]:
        missing = self._num_rows - len(chunks)
        tokens = [token for chunk in chunks for token in (*chunk, *[0] * (self._num_tokens - len(chunk)))]
        tokens += [0] * (missing * self._num_tokens)
        return [*map(len, chunks), *[1] * missing, *map(int, ends), *[0] * missing, *tokens]
