"""What a line of a server's log can say. Times are in milliseconds, throughputs in tokens a second of the whole batch.

A field that a version does not print is None. Formats are those that SGLang and vLLM print; where versions differ, the
field keeps the value as printed and says no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

EngineName = Literal["sglang", "vllm"]


class Head(NamedTuple):
    """Where an entry comes from: its line (from 1), its clock as printed, and who wrote it, "" if that is not said."""

    line: int
    clock: str | None
    rank: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Arguments that a server printed. `resolved`: by the engine after start-up, not by the command that was given."""

    head: Head
    engine: EngineName
    values: Mapping[str, Any]
    resolved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A line that reports the value of one setting."""

    head: Head
    setting: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The server takes requests from here on."""

    head: Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """CUDA graphs were captured; `what` is how the line calls them, such as "cuda graph" or "draft cuda graph"."""

    head: Head
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """A prompt was computed, which disturbs the window it falls in."""

    head: Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """One window of decoding; SGLang prints it every few dozen forwards."""

    head: Head
    running: int
    tokens: int | None
    """Held in the KV cache."""
    accept_length: float | None
    accept_rate: float | None
    """As printed: accept length ÷ draft tokens in some versions, accepted ÷ drafted in others."""
    graph: bool | None
    tok_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Mean milliseconds of each phase of a cycle, over some cycles."""

    head: Head
    cycles: int
    phases: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """vLLM's line every ten seconds."""

    head: Head
    prompt_tok_s: float
    tok_s: float
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecStats:
    """vLLM's figures of speculation since its last such line."""

    head: Head
    accept_length: float | None
    """Bonus token included."""
    accepted: int | None
    drafted: int | None
    per_position: tuple[float, ...]
    """Accepted at each position ÷ all cycles: not conditional on the positions before."""
    acceptance_rate: float | None
    """Accepted ÷ drafted, 0 … 1."""


Record = Settings | Report | Ready | Capture | Prefill | Decode | Profile | EngineStats | SpecStats

Reason = Literal["blank", "not about speed", "cut short", "too long"]
"""Why an entry is no record. "cut short": it begins like one and does not end like one, or its values cannot be."""


class Unread(NamedTuple):
    """An entry that is no record."""

    line: int
    reason: Reason
    text: str
