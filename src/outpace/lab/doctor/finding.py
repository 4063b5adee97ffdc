"""What the doctor says: findings with their evidence, things to try with their arithmetic, and what cannot be known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

Confidence = Literal["high", "medium", "low"]
Kind = Literal["client", "log", "server", "engine"]
"""Where a speed was seen: at a client, in a log, in a live server's counters, in an engine that was run for it."""


class Cite(NamedTuple):
    """Where something was read: a file and its lines, 0 where the file has no lines to name."""

    source: str
    first: int = 0
    last: int = 0

    def __str__(self) -> str:
        if not self.first:
            return self.source
        return f"{self.source}:{self.first}" + (f"–{self.last}" if self.last > self.first else "")


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value, the range it was seen in, how often, and where."""

    value: float
    low: float
    high: float
    count: int
    kind: Kind
    cite: Cite
    values: Sequence[float] = ()
    """What it is of, one by one; none where only the value is known."""
    estimated: bool = False
    """Nobody measured it as a speed: it was put together from what parts cost."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        numbers = {"value": round(self.value, 2), "low": round(self.low, 2), "high": round(self.high, 2)}
        how = {"estimated": True} if self.estimated else {}
        return {**numbers, "count": self.count, "kind": self.kind, **how, "from": str(self.cite)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One question answered. `answer` is a word or two for the table and for machines, `text` says it in full."""

    question: str
    answer: str
    text: str
    confidence: Confidence
    evidence: Sequence[Cite] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.answer != "unknown" or self.confidence == "low", "what is not known is nothing to be sure of"

    @property
    def sources(self) -> list[str]:
        """What it rests on, each once."""
        return list(dict.fromkeys(map(str, self.evidence)))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "evidence": self.sources, "numbers": rounded(self.numbers)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something to change, and what it would come to."""

    action: str
    tok_s: float
    """Expected; of the whole batch."""
    over_now: float
    over_plain: float
    arithmetic: str
    confidence: Confidence

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return rounded(asdict(self))


@dataclass(frozen=True, slots=True)
class Unknown:
    """What the evidence cannot tell, and the one measurement that would."""

    question: str
    measurement: str


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """For JSON: figures as data, other numbers to four places."""
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Figure):
        return value.as_dict()
    if isinstance(value, Mapping):
        return rounded(value)
    return round(value, 4) if isinstance(value, float) else value
