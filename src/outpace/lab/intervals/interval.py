"""A value with the range that holds it."""

from __future__ import annotations

from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value and the range that holds it with 95% confidence."""

    value: float
    bounds: tuple[float, float] | None
    """None where too little was measured for a range."""
