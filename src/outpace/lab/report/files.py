"""Reads result files and finds out what each holds: by its own fields, not by its name.

A file may hold several results, one JSON value a line, as `outpace bench A B --json` prints them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from outpace.errors import ConfigError
from outpace.lab.bench.record import SCHEMA as BENCH_SCHEMA
from outpace.lab.bench.record import BenchRecord
from outpace.lab.paired.record import SCHEMA as COMPARE_SCHEMA
from outpace.lab.paired.record import CompareRecord
from outpace.lab.profile.record import SCHEMA as PROFILE_SCHEMA
from outpace.lab.profile.record import ProfileRecord
from outpace.lab.report.rank_line import Rank
from outpace.wording import reason

LARGEST = 64 << 20
"""Bytes of a file; results are far smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """One map of `outpace breakeven --json`."""

    down: str
    across: str
    rows: list[str]
    columns: list[str]
    ratio: list[list[float]]
    notes: list[list[str]]
    here: tuple[int, int] | None

    def __post_init__(self) -> None:
        sizes = {len(line) for line in self.ratio} | {len(line) for line in self.notes}
        if (
            sizes - {len(self.columns)}
            or len(self.ratio) != len(self.rows)
            or len(self.notes) not in (0, len(self.rows))
        ):
            raise ValueError(f"the map of {self.down!r} has rows of other lengths than its names")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What it would take to reach one."""

    tok_s: float
    accept_length: float
    verify_ms: float
    possible_with_k: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakeven:
    """What `outpace breakeven --json` prints, as far as it is shown; no balance where only costs were given."""

    heat: list[HeatMap]
    speeds: list[Speed]
    plain_tok_s: float | None = None
    speculative_tok_s: float | None = None
    ratio: float | None = None
    accept_length: float | None = None
    break_even_accept_length: float | None = None
    break_even_verify_ms: float | None = None
    decode_ms: float | None = None
    verify_ms: float | None = None
    draft_ms: float | None = None
    other_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A finding of the doctor."""

    question: str
    answer: str
    text: str
    confidence: str
    evidence: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """What the doctor would change."""

    action: str
    tok_s: float
    over_now: float
    over_plain: float
    confidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclear:
    """What the doctor cannot tell."""

    question: str
    measurement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """What `outpace doctor --json` prints, as far as it is shown."""

    verdict: list[str]
    findings: list[Found]
    advice: list[Advised]
    unknown: list[Unclear]
    subject: str | None = None
    """Not in results of earlier versions."""
    machine: dict[str, Any] | None = None


Result = BenchRecord | CompareRecord | ProfileRecord | Breakeven | Doctor | Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A result and where it is from."""

    name: str
    result: Result


def read(paths: Sequence[Path]) -> list[Source]:
    """All results of the files, in their order.

    Raises:
        ConfigError: a file cannot be read, is empty, or holds something that is no result.
    """
    return [Source(name=path.name, result=result) for path in paths for result in _results(path)]


def _results(path: Path) -> list[Result]:
    try:
        if path.stat().st_size > LARGEST:
            raise ConfigError(f"{path} has {path.stat().st_size:,} bytes; results have at most {LARGEST:,}")
        text = path.read_bytes()
        values = _values(text)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(
            f"cannot read {path}: {reason(error)}; name files that outpace commands wrote with --json"
        ) from error
    if not values:
        raise ConfigError(f"{path} is empty; name files that outpace commands wrote with --json")
    return [_result(path, value) for value in values]


def _values(text: bytes) -> list[Any]:
    """One value, on however many lines, or one a line."""
    try:
        return [msgspec.json.decode(text)] if text.strip() else []
    except msgspec.DecodeError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [msgspec.json.decode(line) for line in lines]


def _result(path: Path, value: Any) -> Result:
    kinds: list[tuple[set[str], type[Any], int | None]] = [
        ({"ways", "limits_ms"}, ProfileRecord, PROFILE_SCHEMA),
        ({"figures", "server"}, BenchRecord, BENCH_SCHEMA),
        ({"verdict", "blocks"}, CompareRecord, COMPARE_SCHEMA),
        ({"verdict", "findings"}, Doctor, None),
        ({"heat", "speeds"}, Breakeven, None),
        ({"benchmark", "experts_alone"}, Rank, None),
    ]
    fields = set(value) if isinstance(value, dict) else set()
    for names, kind, schema in kinds:
        if not names <= fields:
            continue
        if schema is not None and value.get("schema") != schema:
            raise ConfigError(f"{path} has schema {value.get('schema')!r}; this version reads {schema}: measure again")
        try:
            result: Result = msgspec.convert(value, type=kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{path} is a broken result: {error}; measure again") from error
        return result
    raise ConfigError(
        f"{path} holds no result of outpace bench, compare, profile, breakeven or doctor, and no line of "
        "benchmarks/mixture.py"
    )
