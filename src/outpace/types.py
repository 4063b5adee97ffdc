"""The few values that everyone passes: a request, what the host plans for one forward, what the device answers.

A Plan is host data and decides shapes; an Outcome is device data and decides nothing until `engine.collect` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from outpace.config import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be answered."""

    id: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    """Resolved from `params.seed`, drawn when that is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """What the device must know of a request that enters a row."""

    row: int
    num_cached: int
    """Positions already in the row's pages (a prefix hit)."""
    params: SamplingParams
    seed: int
    max_k: int
    """Drafts a cycle that the row may accept; 0 decodes it plainly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the host changed since the last plan: rows that were filled, pages that were added to a row's table."""

    rows: tuple[RowSettings, ...] = ()
    page_rows: tuple[int, ...] = ()
    page_columns: tuple[int, ...] = ()
    pages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One forward over some rows.

    With `chunks` it is prefill: the prompt tokens of each row that are computed now. Without, it is a cycle of `k`
    drafts and one verify; k = 0 is a plain step.
    """

    rows: tuple[int, ...]
    bound: int
    """No row of the plan reaches a position at or past this."""
    k: int = 0
    chunks: tuple[tuple[int, ...], ...] = ()
    fills_drafter: bool = False
    """Prefill only: the drafter's cache is filled beside the target's."""
    any_sampled: bool = False
    any_truncated: bool = False
    changes: Changes = field(default_factory=Changes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one forward chose, still on the device: the first `num_emitted_B[b]` tokens of each row count.

    After prefill S is 1; the token counts only for rows whose prompt ended in this chunk.
    """

    tokens_BS: Tensor
    num_emitted_B: Tensor
