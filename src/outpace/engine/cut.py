"""A cycle that is cut before it accepts: the host reads its drafts, and brings masks, while the device verifies.

    draft ──► verify ──────────────► accept
        └─► drafts ─► host: masks ─► ┘

Shapes: B rows, S = K+1 places a row, W words of packed masks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outpace.distributed.group import Group
from outpace.engine.grammars.masks import Masks, blank
from outpace.speculation.chosen import Chosen
from outpace.speculation.cycle import Cycle

Part = Callable[[], None]


class CutCycle:
    """The parts of one cycle over buffers that do not move.

    Args:
        begin: makes the cycle; what it reads of the state is the first part's.
        num_rows: B.
        k: drafts.
        num_ids: vocabulary of the target.
        device: where it runs.
        group: the ranks that run it; masks are the first one's.
    """

    def __init__(
        self, begin: Callable[[], Cycle], num_rows: int, k: int, num_ids: int, device: torch.device, group: Group
    ) -> None:
        self._begin, self._num_ids, self._group = begin, num_ids, group
        self._allowed_BSW = blank(num_rows, k + 1, num_ids, pinned=False).to(device)
        self._cycle: Cycle | None = None
        self._chosen: Chosen | None = None
        self._parts: tuple[Part, Part, Part] = (self._draft, self._verify, self._accept)

    def capture(self, record: Callable[[Part], Part]) -> None:
        """Each part becomes a graph; what one leaves for the next stays where it is."""
        first, second, third = self._draft, self._verify, self._accept
        self._parts = (record(first), record(second), record(third))

    def run(self) -> None:
        """All parts in a row, with masks that are there: what a capture is warmed up with."""
        self._draft()
        self._verify()
        self._accept()

    def replay(self, masks: Masks) -> Chosen:
        """The cycle, under masks."""
        draft, verify, accept = self._parts
        draft()
        assert self._cycle is not None
        drafts, ready = self._to_host(self._cycle.drafts_BK if masks.lines else None)
        verify()
        if ready is not None:
            ready.synchronize()  # the drafts are there; the device verifies
        masks.bring(self._allowed_BSW, [] if drafts is None else drafts.tolist(), self._num_ids, self._group)
        accept()
        assert self._chosen is not None
        return self._chosen

    def _to_host(self, drafts_BK: Tensor | None) -> tuple[Tensor | None, torch.cuda.Event | None]:
        if drafts_BK is None or not drafts_BK.is_cuda:
            return drafts_BK, None
        copy = torch.empty(drafts_BK.shape, dtype=drafts_BK.dtype, pin_memory=True)
        copy.copy_(drafts_BK, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return copy, event

    def _draft(self) -> None:
        self._cycle = self._begin()
        self._cycle.draft()

    def _verify(self) -> None:
        assert self._cycle is not None
        self._cycle.verify()

    def _accept(self) -> None:
        assert self._cycle is not None
        self._chosen = self._cycle.accept(self._allowed_BSW)
