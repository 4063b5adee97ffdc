"""What was seen of one server between two starts, whatever it was read from.

Windows are sums, so that neighbours can be merged: a long history keeps its shape in bounded memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outpace.lab.doctor.finding import Cite, Figure, Kind
from outpace.lab.doctor.series import joined
from outpace.lab.intervals.interval import Interval
from outpace.lab.intervals.verdict import Over


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of decoding at one batch size."""

    cite: Cite
    count: int
    """Windows of the log in it."""
    work: float
    """Sum of their accept lengths, 1 for a plain one: in proportion to the tokens that they emitted."""
    time: float
    """Sum of work ÷ throughput."""
    tokens: int | None
    """In the KV cache at its end."""
    speculative: bool

    @property
    def tok_s(self) -> float:
        return self.work / self.time

    @property
    def accept_length(self) -> float | None:
        return self.work / self.count if self.speculative else None

    def join(self, later: Window) -> Window:
        """Both as one."""
        return Window(
            cite=Cite(self.cite.source, self.cite.first, later.cite.last),
            count=self.count + later.count,
            work=self.work + later.work,
            time=self.time + later.time,
            tokens=later.tokens,
            speculative=self.speculative,
        )


@dataclass(frozen=True, slots=True)
class Phases:
    """Milliseconds of each phase, summed over cycles."""

    cite: Cite
    cycles: int
    total_ms: Mapping[str, float]

    def join(self, later: Phases) -> Phases:
        """Both as one."""
        names = (*self.total_ms, *(name for name in later.total_ms if name not in self.total_ms))
        return Phases(
            cite=Cite(self.cite.source, self.cite.first, later.cite.last),
            cycles=self.cycles + later.cycles,
            total_ms={name: self.total_ms.get(name, 0.0) + later.total_ms.get(name, 0.0) for name in names},
        )

    def mean_ms(self, *words: str, but: str = "") -> float:
        """Of the phases whose name has one of the words, a cycle."""
        return (
            sum(ms for name, ms in self.total_ms.items() if any(w in name for w in words) and not (but and but in name))
            / self.cycles
        )

    @property
    def verify_ms(self) -> float:
        return self.mean_ms("verify")

    @property
    def draft_ms(self) -> float:
        return self.mean_ms("draft", but="verify")

    @property
    def sum_ms(self) -> float:
        return sum(self.total_ms.values()) / self.cycles


@dataclass(frozen=True, slots=True)
class Value:
    """Of a setting, and where it was read."""

    value: Any
    cite: Cite


@dataclass(frozen=True, slots=True)
class Accepted:
    """Accept length of a run by the one source that is the most exact, and what that source is."""

    length: float
    how: str
    plain_part: float = 0.0
    """Of the cycles that the speed is of, how many were plain steps."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One server between two starts. Windows are those of one rank at its most frequent batch size."""

    source: str
    kind: Kind = "log"
    """What the windows were seen in."""
    plain: Figure | None = None
    """Plain decoding's speed at this batch, where the server itself measured it."""
    over_plain: tuple[Interval, Over] | None = None
    """Its speed over plain decoding's, where the two were measured in turns."""
    engine: str | None = None
    asked: dict[str, Value] = field(default_factory=dict)
    """What it was started with, by name; nested settings under their own names."""
    resolved: dict[str, Value] = field(default_factory=dict)
    """What lines reported later on."""
    running: int = 0
    """Rows of the batch in the windows."""
    first: Window | None = None
    """The very first; it may hold a prefill or idle time."""
    windows: Sequence[Window] = ()
    """Steady ones where there are any."""
    by_running: Mapping[int, Sequence[Window]] = field(default_factory=dict)
    """The same for every batch size seen."""
    num_ranks: int = 0
    rank: str = ""
    phases: Sequence[Phases] = ()
    counted: tuple[int, int] | None = None
    """Tokens that the KV cache grew by, and the cycles that took, where the log has both."""
    accepted: Accepted | None = None
    """As a server told it; None where only windows tell of it."""
    setup: str = ""
    """Of a live server: what it says that it is set up to do, as a sentence."""
    graphs: dict[bool, tuple[int, Cite]] = field(default_factory=dict)
    """How often lines said that a graph ran or did not, and the first such line."""
    captures: dict[str, Cite] = field(default_factory=dict)
    accept_rates: tuple[float, float] | None = None
    """Means of the printed accept rate and of the accept length beside it."""
    per_position: Sequence[float] = ()
    per_position_cite: Cite | None = None

    @property
    def algorithm(self) -> Any:
        """How it was asked to speculate; None where it was not."""
        for name in ("speculative_algorithm", "speculative_config", "method"):
            if name in self.asked and self.asked[name].value is not None:
                return self.asked[name].value
        return None

    @property
    def speculative(self) -> bool:
        return self.algorithm is not None or any(window.speculative for window in self.windows)

    @property
    def max_accept_length(self) -> int | None:
        """k + 1 along one chain; None where the arguments do not say."""
        for name in ("speculative_num_steps", "num_speculative_tokens", "num_spec_tokens"):
            if name in self.asked and isinstance(self.asked[name].value, int):
                return int(self.asked[name].value) + 1
        return None

    @property
    def verify_tokens(self) -> int | None:
        """Tokens of one verify: of a tree more than a chain's k + 1."""
        asked = self.asked.get("speculative_num_draft_tokens")
        return asked.value if asked is not None and isinstance(asked.value, int) else self.max_accept_length

    @property
    def total(self) -> Window | None:
        """All windows as one."""
        return joined(self.windows)

    @property
    def phase(self) -> Phases | None:
        """All profiles as one."""
        return joined(self.phases)
