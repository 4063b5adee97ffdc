"""Makes runs from a log's records: a run ends where a server is started anew.

Of several ranks, the one that printed most is taken; of several batch sizes, each is kept for itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from outpace.errors import ConfigError
from outpace.lab.doctor.evidence import Phases, Run, Value, Window
from outpace.lab.doctor.finding import Cite
from outpace.lab.doctor.rank import Rank, Rates
from outpace.lab.doctor.series import Series
from outpace.lab.logs.reader import Tally, read_log
from outpace.lab.logs.records import (
    Capture,
    Decode,
    EngineStats,
    Prefill,
    Profile,
    Record,
    Report,
    Settings,
    SpecStats,
    Unread,
)
from outpace.wording import count_of

PACKED = {
    b"\x1f\x8b": ("packed with gzip", "gunzip"),
    b"\x28\xb5\x2f\xfd": ("packed with zstd", "unzstd"),
    b"\xfd7zXZ": ("packed with xz", "unxz"),
    b"PK\x03\x04": ("a zip file", "unzip"),
    b"\xff\xfe": ("UTF-16", "iconv -f utf-16 -t utf-8"),
    b"\xfe\xff": ("UTF-16", "iconv -f utf-16 -t utf-8"),
}
"""How files begin that hold a log all the same: what they are, and what unpacks them."""
LOOKED_FOR = (
    "decode statistics (SGLang's begin with 'Decode batch', vLLM's hold 'Avg generation throughput'), a profile of "
    "phases, the server's arguments or a graph's capture; give the log that the server itself writes"
)
MOST_RANKS = 64
MOST_RUNS = 64
ENTRIES_A_LOOK = 1024
"""Between two looks at the clock while a log is read."""
SHOWN_AFTER_S, SHOWN_EVERY_S = 1.0, 0.2
"""A log that is read at once shows no progress."""
NESTED = ("speculative_config", "compilation_config")
"""vLLM's settings that are several in one."""


def runs_of(path: Path, progress: Callable[[str], None] = lambda text: None) -> tuple[list[Run], Tally]:
    """Every run in a log, and how much of it was read.

    Args:
        path: of the log.
        progress: told how far a long one was read.

    Raises:
        ConfigError: there is no such file, it is packed, or it holds nothing that a server's log would.
    """
    tally, kinds = Tally(), set[type[Record]]()
    try:
        with path.open("rb") as file:
            begins = file.peek(4)
            for magic, (what, remedy) in PACKED.items():
                if begins.startswith(magic):
                    raise ConfigError(f"{path} is {what}, no text; give what {remedy} makes of it")
            entries = _told(read_log(file), file, path, progress)
            runs = list(runs_in(_counted(entries, tally, kinds), path.name))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; name a server's log") from error
    if kinds <= {Report} and "cut short" not in tally.unread:  # any text may hold a setting's name and its value
        raise ConfigError(f"{path} is no log of SGLang or vLLM: none of its {tally.num_lines:,} lines is {LOOKED_FOR}")
    return runs, tally


def _told(
    entries: Iterator[Record | Unread], file: BinaryIO, path: Path, progress: Callable[[str], None]
) -> Iterator[Record | Unread]:
    """The entries of a file, with word now and then of how far they are; of a pipe nobody knows how much is to come."""
    size = path.stat().st_size if file.seekable() else 0
    due = time.monotonic() + SHOWN_AFTER_S
    for number, entry in enumerate(entries, start=1):
        if number % ENTRIES_A_LOOK == 0 and time.monotonic() >= due:
            progress(f"reading {path.name}: " + (f"{file.tell() / size:.0%}" if size else count_of(number, "line")))
            due = time.monotonic() + SHOWN_EVERY_S
        yield entry


def _counted(entries: Iterator[Record | Unread], tally: Tally, kinds: set[type[Record]]) -> Iterator[Record]:
    for entry in entries:
        tally.add(entry)
        if not isinstance(entry, Unread):
            kinds.add(type(entry))
            yield entry


def runs_in(records: Iterator[Record], source: str) -> Iterator[Run]:
    """Runs, in order; at most `MOST_RUNS`, what is beyond belongs to the last."""
    collector = Collector(source)
    num_runs = 1
    for record in records:
        if isinstance(record, Settings) and not record.resolved and collector.has_windows and num_runs < MOST_RUNS:
            yield collector.run()
            collector = Collector(source)
            num_runs += 1
        collector.add(record)
    yield collector.run()


class Collector:
    """Takes the records of one run, in order."""

    def __init__(self, source: str) -> None:
        self._run = Run(source=source)
        self._ranks: dict[str, Rank] = {}
        self._phases: Series[Phases] = Series()
        self._profile_ranks: set[str] = set()
        self._cycles = 0
        """Profiled since the last window."""
        self._rates = Rates()
        self._positions: list[float] = []
        self._position_weight = 0.0
        self._stats: EngineStats | None = None
        """Waits for the figures of speculation that follow it."""

    @property
    def has_windows(self) -> bool:
        return bool(self._ranks) or self._stats is not None

    def add(self, record: Record) -> None:
        match record:
            case Decode():
                self._decode(record)
            case Profile():
                self._profile(record)
            case Settings():
                self._settings(record)
            case Report():
                self._run.resolved[record.setting] = Value(record.value, self._cite(record))
            case Capture():
                if len(self._run.captures) < MOST_RANKS:
                    self._run.captures.setdefault(record.what, self._cite(record))
            case Prefill():
                self._rank(record).disturbed = True
            case EngineStats():
                self._flush(None)
                self._stats = record
            case SpecStats():
                self._spec(record)

    def run(self) -> Run:
        """What came of it."""
        self._flush(None)
        run, ranks = self._run, {name: rank for name, rank in self._ranks.items() if rank.count}
        run.phases = self._phases.items
        run.accept_rates = self._rates.means
        if self._position_weight:
            run.per_position = [total / self._position_weight for total in self._positions]
        run.num_ranks = len(ranks)
        if ranks:
            run.rank, rank = max(ranks.items(), key=lambda item: item[1].count)
            run.running = max(rank.sizes, key=lambda running: rank.sizes[running].count)
            run.first, run.windows = rank.first[run.running], rank.sizes[run.running].best
            run.by_running = {running: size.best for running, size in rank.sizes.items()}
            if len(ranks) == 1 and len(self._profile_ranks) == 1 and rank.counted[1]:
                run.counted = rank.counted
        return run

    def _cite(self, record: Record) -> Cite:
        return Cite(self._run.source, record.head.line, record.head.line)

    def _rank(self, record: Record) -> Rank:
        name = record.head.rank if len(self._ranks) < MOST_RANKS or record.head.rank in self._ranks else ""
        return self._ranks.setdefault(name, Rank())

    def _settings(self, record: Settings) -> None:
        self._run.engine = record.engine
        into = self._run.resolved if record.resolved else self._run.asked
        for name, value in _flat(record.values):
            into[name] = Value(value, self._cite(record))
        if record.resolved and not self._run.asked:  # a log that begins after the command was printed
            self._run.asked.update(into)

    def _decode(self, record: Decode) -> None:
        self._run.engine = self._run.engine or "sglang"
        rank, cite = self._rank(record), self._cite(record)
        if record.graph is not None:
            count, first = self._run.graphs.get(record.graph, (0, cite))
            self._run.graphs[record.graph] = (count + 1, first)
        steady = not rank.disturbed and rank.last_running == record.running
        if steady and record.running == 1 and self._cycles and record.tokens and rank.last_tokens:
            grown = record.tokens - rank.last_tokens
            if grown > 0:
                rank.counted = (rank.counted[0] + grown, rank.counted[1] + self._cycles)
        if record.accept_rate and record.accept_length:
            self._rates.add(record.accept_rate, record.accept_length)
        self._cycles, rank.disturbed = 0, False
        rank.last_running, rank.last_tokens = record.running, record.tokens
        window = _window(cite, record.tok_s, record.accept_length, record.tokens)
        if window is not None and record.running:
            rank.add(window, record.running, steady=steady)

    def _profile(self, record: Profile) -> None:
        self._cycles += record.cycles
        if len(self._profile_ranks) < MOST_RANKS:
            self._profile_ranks.add(record.head.rank)
        total = {name: ms * record.cycles for name, ms in record.phases.items()}
        self._phases.add(Phases(self._cite(record), record.cycles, total))

    def _spec(self, record: SpecStats) -> None:
        if record.per_position and (not self._positions or len(record.per_position) == len(self._positions)):
            weight = _cycles(record)
            self._positions = self._positions or [0.0] * len(record.per_position)
            self._positions = [a + weight * b for a, b in zip(self._positions, record.per_position, strict=True)]
            self._position_weight += weight
            first = self._run.per_position_cite or self._cite(record)
            self._run.per_position_cite = Cite(first.source, first.first, record.head.line)
        self._flush(record)

    def _flush(self, spec: SpecStats | None) -> None:
        """The waiting figures become a window; those of a window with a prefill, or after idle time, are not steady."""
        stats, self._stats = self._stats, None
        if stats is None:
            return
        self._run.engine = self._run.engine or "vllm"
        rank = self._rank(stats)
        steady = rank.last_running == stats.running and stats.prompt_tok_s == 0.0
        rank.last_running = stats.running
        length = None if spec is None else self._length(spec)
        if spec is not None and length is None:
            return  # it speculated, and how many tokens a cycle brought is not told
        window = _window(self._cite(stats), stats.tok_s, length, None)
        if window is not None and stats.running:
            rank.add(window, stats.running, steady=steady)

    def _length(self, spec: SpecStats) -> float | None:
        """As printed, or from the rate where the arguments say how many a cycle drafts."""
        longest = self._run.max_accept_length
        if spec.accept_length is not None or spec.acceptance_rate is None or longest is None:
            return spec.accept_length
        return 1.0 + spec.acceptance_rate * (longest - 1)


def _window(cite: Cite, tok_s: float, accept_length: float | None, tokens: int | None) -> Window | None:
    """None for one in which nothing was emitted."""
    if tok_s <= 0.0 or (accept_length is not None and accept_length < 1.0):
        return None
    work = accept_length or 1.0
    return Window(cite, 1, work, work / tok_s, tokens, accept_length is not None)


def _cycles(record: SpecStats) -> float:
    """How many cycles the figures are over, in proportion; 1 where the line does not tell."""
    if record.accepted and record.accept_length and record.accept_length > 1.0:
        return record.accepted / (record.accept_length - 1.0)
    return 1.0


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        yield name, value
        if name in NESTED and isinstance(value, Mapping):
            yield from value.items()
