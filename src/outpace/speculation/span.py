"""A span: where S tokens of each row stand, and where their entries are kept. A forward of either model takes one.

Shapes: B rows, S tokens a row, P pages a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outpace.kernels.kv import places


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive positions of each row."""

    table_BP: Tensor
    """Page tables, cut to the pages in reach."""
    start_B: Tensor
    """Position of each row's first token."""
    positions_BS: Tensor
    """start, start + 1, …"""
    slots_BS: Tensor
    """Where each token's entry is kept; padding goes to the trash page."""
    kept_B: Tensor | None = None
    """How many of each row's tokens are kept; None where all are."""

    @classmethod
    def of(
        cls, table_BP: Tensor, start_B: Tensor, num_tokens: int, page_size: int, kept_B: Tensor | None = None
    ) -> Span:
        """S = `num_tokens` from `start_B` on, of which a row keeps the first `kept_B`; None keeps all."""
        positions_BS, slots_BS = places(start_B, num_tokens, kept_B, table_BP, page_size)
        return cls(table_BP, start_B, positions_BS, slots_BS, kept_B)

    @classmethod
    def ahead(cls, table_BP: Tensor, start_B: Tensor, num: int, page_size: int) -> Span:
        """One token a row, `num` positions behind `start_B`."""
        position_B1, slot_B1 = places(start_B, 1, None, table_BP, page_size, ahead=num)
        return cls(table_BP, position_B1[:, 0], position_B1, slot_B1)

    def behind_first(self) -> Span:
        """The same without each row's first token."""
        return Span(self.table_BP, self.start_B + 1, self.positions_BS[:, 1:], self.slots_BS[:, 1:].contiguous())
