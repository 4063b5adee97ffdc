"""What a frame reads beside the state, in one buffer that never moves: row numbers, and changes of the page table.

Shapes: B rows of the frame, C changes that it takes, I = B + 3·C.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.types import Changes


class FrameInputs:
    """int64 [I]: row numbers, then rows, columns and pages of the changes; what is not needed leads to the inert row.

    Args:
        num_rows: B.
        num_changes: C.
        inert: the row that belongs to nobody.
        device: where the buffer lies.
    """

    def __init__(self, num_rows: int, num_changes: int, inert: int, device: torch.device) -> None:
        self._num_rows, self._num_changes, self._inert = num_rows, num_changes, inert
        self._buffer_I = torch.tensor(self._listed((), Changes()), device=device)
        self.rows_B, changes = self._buffer_I.split_with_sizes((num_rows, 3 * num_changes))
        self.page_rows_C, self.columns_C, self.pages_C = changes.view(3, num_changes)

    def fit(self, changes: Changes) -> bool:
        """Whether the buffer takes these changes; rows that were filled it never takes."""
        return not changes.rows and len(changes.pages) <= self._num_changes

    def write(self, rows: Sequence[int], changes: Changes) -> None:
        """For the next replay: at most B rows, and changes that fit. Replays before it still read what they were given.

        On a GPU the host does not wait.
        """
        listed = torch.tensor(self._listed(rows, changes))
        self._buffer_I.copy_(listed.pin_memory() if self._buffer_I.is_cuda else listed, non_blocking=True)

    def _listed(self, rows: Sequence[int], changes: Changes) -> list[int]:
        padding = [self._inert] * (self._num_rows - len(rows))
        unused = [0] * (self._num_changes - len(changes.pages))
        page_rows = [*changes.page_rows, *[self._inert] * len(unused)]
        return [*rows, *padding, *page_rows, *changes.page_columns, *unused, *changes.pages, *unused]
