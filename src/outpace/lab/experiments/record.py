"""One experiment as data. It is written before anything is measured, and its result once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SCHEMA = 1

State = Literal["applied", "not applied", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Whether one setting of the change took effect. Texts are "" where nothing is known."""

    name: str
    asked_a: str
    asked_b: str
    says_a: str
    """What A's server says that it came to."""
    says_b: str
    state: State
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to."""

    finished_at: str
    """UTC, ISO 8601."""
    applied: State
    settings: tuple[Applied, ...]
    also_different: tuple[str, ...]
    """Settings that the two servers report otherwise though nobody asked for it."""
    observed: tuple[str, ...]
    """What was measured beside the speed that a change may show in."""
    verdict: str
    """faster, slower, equivalent or inconclusive: of B's speed, whether the change was applied or not."""
    ratio: float | None
    """B ÷ A."""
    low: float | None
    high: float | None
    confidence: float | None
    conclusion: str
    """Of the hypothesis, in words."""
    cut_short: bool = False
    """It was stopped before all blocks were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What `experiment.json` holds."""

    schema: int = SCHEMA
    name: str
    created_at: str
    """UTC, ISO 8601."""
    hypothesis: str
    change: str
    a: str
    """As `outpace compare` takes it: what B is held against."""
    b: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """What the change asks of B, by name; beside what differs between the options of A and B."""
    outcome: Outcome | None = None
