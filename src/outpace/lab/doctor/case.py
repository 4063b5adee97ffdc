"""What is to be judged, and the few quantities that every finding is made of. None stands for what nobody measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outpace.lab.breakeven.balance import Balance
from outpace.lab.doctor.client import Client
from outpace.lab.doctor.evidence import Run, Window
from outpace.lab.doctor.finding import Cite, Figure, Kind
from outpace.lab.doctor.series import joined
from outpace.lab.intervals.interval import Interval
from outpace.lab.intervals.rank_sums import LEAST, ratio_bounds
from outpace.lab.intervals.verdict import Over

VALUES: dict[Kind, str] = {"client": "runs", "log": "windows", "server": "answers", "engine": "answers"}
"""What a figure of that kind is of."""

MOST_PLAIN = 0.5
"""Part of the cycles; with more plain steps among them the speed says little of those that draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run, plain decoding to hold it against, other runs of the same server, and a client's figures."""

    subject: Run
    plain_run: Run | None = None
    others: Sequence[Run] = ()
    client: Client | None = None


def choose(runs: Sequence[Run], baseline: Sequence[Run], client: Client | None) -> Case:
    """The last speculative run of a log is the subject; the last plain one, of the baseline's log first, is plain."""
    found = subject(runs)
    rest = [run for run in (*runs, *baseline) if run is not found and run.windows]
    plain = next((run for run in reversed(rest) if not run.speculative), None)
    others = [run for run in rest if run.speculative]
    return Case(subject=found, plain_run=plain, others=others, client=client)


def subject(runs: Sequence[Run]) -> Run:
    """The last speculative run with windows; without one the last with windows, or the last."""
    with_windows = [run for run in runs if run.windows]
    speculative = [run for run in with_windows if run.speculative]
    return (speculative or with_windows or list(runs))[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Speeds are those of the whole batch; times in milliseconds a cycle."""

    running: int
    speed: Figure | None
    plain: Figure | None
    accept_length: float | None
    accept_how: str
    """Where the accept length comes from, in words."""
    printed_accept_length: float | None
    plain_part: float = 0.0
    """Of the cycles that the speed is of, how many were plain steps."""
    verify_ms: float | None = None
    draft_ms: float | None = None
    phases_ms: float | None = None
    """All phases that a profile knows."""
    over_plain: Interval | None = None
    """Its speed over plain decoding's; None where one was measured nowhere."""
    over: Over | None = None
    """What that interval is taken over; None of two kinds of source, which give none."""

    @property
    def step_ms(self) -> float | None:
        """Of plain decoding; a client's speed is one stream's, so with more it says nothing about a step."""
        return None if self.plain is None else self._time(self.plain, 1.0)

    @property
    def cycle_ms(self) -> float | None:
        """Accept length over the speed: what a cycle took, seen from outside.

        Where plain steps are among the cycles, what is left of the time without them; None if most are.
        """
        if self.speed is None or self.accept_length is None:
            return None
        part = self.plain_part
        mean = self._time(self.speed, (1.0 - part) * self.accept_length + part)
        if not part or mean is None:
            return mean
        step = self.step_ms
        return (mean - part * step) / (1.0 - part) if step is not None and part < MOST_PLAIN else None

    def _time(self, speed: Figure, tokens: float) -> float | None:
        known = speed.kind != "client" or self.running == 1
        return 1e3 * tokens * max(1, self.running) / speed.value if known else None

    @property
    def unexplained_ms(self) -> float | None:
        """Of a cycle, what no phase holds."""
        return None if self.cycle_ms is None or self.phases_ms is None else self.cycle_ms - self.phases_ms

    @property
    def other_ms(self) -> float | None:
        """Phases that are neither draft nor verify."""
        if self.phases_ms is None or self.verify_ms is None or self.draft_ms is None:
            return None
        return self.phases_ms - self.verify_ms - self.draft_ms

    @property
    def contradicted(self) -> bool:
        """A cycle does a plain step's work and more: figures by which it takes less are not of one thing."""
        return self.cycle_ms is not None and self.step_ms is not None and self.cycle_ms < self.step_ms

    @property
    def balance(self) -> Balance | None:
        """Everything together, what is unexplained in the rest; where no speed is known the cycle is its phases.

        None where the figures contradict each other.
        """
        cycle_ms, step_ms = self.cycle_ms or self.phases_ms, self.step_ms
        if self.accept_length is None or cycle_ms is None or step_ms is None or self.contradicted:
            return None
        return Balance(
            accept_length=self.accept_length,
            cycle_s=cycle_ms / 1e3,
            step_s=step_ms / 1e3,
            draft_s=(self.draft_ms or 0.0) / 1e3,
            verify_s=(self.verify_ms or 0.0) / 1e3,
        )


def measure(case: Case) -> Measures:
    """A client's figures where there are any, a log's where not."""
    run, client = case.subject, case.client
    speed = client.figure(client.run) if client and client.run else window_figure(run.windows, run.kind)
    plain = client.figure(client.plain) if client and client.plain else None
    if plain is None and case.plain_run is not None:
        plain = window_figure(case.plain_run.by_running.get(run.running, ()), case.plain_run.kind)
    plain = plain or run.plain
    length, how, printed = _accept_length(run)
    phases = run.phase
    over_plain, over = run.over_plain or _apart(speed, plain)
    return Measures(
        running=run.running,
        speed=speed,
        plain=plain,
        accept_length=length,
        accept_how=how,
        printed_accept_length=printed,
        plain_part=run.accepted.plain_part if run.accepted is not None else 0.0,
        verify_ms=phases.verify_ms if phases else None,
        draft_ms=phases.draft_ms if phases else None,
        phases_ms=phases.sum_ms if phases else None,
        over_plain=over_plain,
        over=over,
    )


def _apart(speed: Figure | None, plain: Figure | None) -> tuple[Interval | None, Over | None]:
    """Of two speeds that were measured apart; two ways of measuring differ by more than the spread of either."""
    if speed is None or plain is None:
        return None, None
    value = speed.value / plain.value
    if speed.kind != plain.kind:
        return Interval(value=value, bounds=None), None
    num = min(len(speed.values), len(plain.values))
    over = Over(num=num, least=LEAST, name=f"{VALUES[speed.kind]} of either kind")
    return Interval(value=value, bounds=ratio_bounds(speed.values, plain.values)), over


def window_figure(windows: Sequence[Window], kind: Kind) -> Figure | None:
    """Tokens over time of some windows, and their range."""
    total = joined(windows)
    if total is None:
        return None
    speeds = [window.tok_s for window in windows]
    count = total.count if kind == "log" else len(windows)
    return Figure(total.tok_s, min(speeds), max(speeds), count, kind, total.cite, speeds)


def _accept_length(run: Run) -> tuple[float | None, str, float | None]:
    """As a server told it; tokens counted over cycles counted, where a log has both and they make sense; else the mean
    of what it prints."""
    if run.accepted is not None:
        return run.accepted.length, run.accepted.how, None
    total = run.total
    printed = total.accept_length if total else None
    if run.counted is not None and printed is not None:
        tokens, cycles = run.counted
        if 1.0 <= tokens / cycles <= (run.max_accept_length or 2.0 * printed):
            return tokens / cycles, f"{tokens:,} tokens into the KV cache in {cycles:,} profiled cycles", printed
    return printed, "mean of what the windows print" if run.kind == "log" else "mean of the windows", printed


def cites(*found: Figure | Cite | None) -> list[Cite]:
    """Where things come from, without those that are not there."""
    return [each.cite if isinstance(each, Figure) else each for each in found if each is not None]
