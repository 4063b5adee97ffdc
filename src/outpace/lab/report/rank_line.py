"""A line of `benchmarks/mixture.py`, as far as it is shown: one rank of a model that is cut over several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from outpace.lab.profile.record import Paired


@dataclass(frozen=True, slots=True, kw_only=True)
class Median:
    median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A forward, as a graph or launched eagerly."""

    ms: Median
    fraction_of_limit: float
    over_plain: Paired


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """A plain step, whose k is 0, or a verify of k drafts."""

    k: int
    limit_ms: float
    """Its bytes at the copy rate."""
    graph: Timed | None
    eager: Timed | None

    @property
    def name(self) -> str:
        return "plain step" if self.k == 0 else f"verify of {self.k + 1}"

    @property
    def timed(self) -> Timed | None:
        """As it serves: as a graph, where there are graphs."""
        return self.graph or self.eager


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Of a forward, over all layers."""

    ms: float
    limit_ms: float
    stacks: bool
    """Whether it is no part of another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The routed experts of so many tokens, alone."""

    tokens: int
    experts_touched: float
    mb_a_layer: float
    us_a_layer: float
    share_of_copy_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """What all ranks would come to with drafts."""

    sum_us: float
    k: int
    plain_tok_s: float
    verify_over_plain: float
    cycle_ms: float
    break_even_accept_length: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    note: str
    draft_ms: float
    rows: list[Together]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    shape: str
    context: int
    expert_reuse: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    all: int
    with_experts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The line."""

    benchmark: Literal["mixture"]
    settings: Settings
    rates: dict[str, float]
    layers: Layers
    cells: list[Forward]
    experts_alone: list[Experts]
    parts: dict[int, dict[str, Part]]
    """Of the forwards that were taken apart, by k."""
    extrapolation: Extrapolation
    machine: dict[str, Any]

    @property
    def taken_apart(self) -> list[Forward]:
        return [forward for forward in self.cells if forward.k in self.parts]
