"""What was seen of contenders, round by round, as the figures of a record."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from outpace.lab.profile.contenders import Seen, means
from outpace.lab.profile.parts import PARTS
from outpace.lab.profile.record import PHASES, How, Paired, Part, Speed, Way, way_of
from outpace.lab.profile.trace import BETWEEN
from outpace.lab.timing.rounds import paired_ratio


def way(how: How, seen: Sequence[Seen], watched: Sequence[Seen], *, on_cpu: bool) -> Way:
    """One way that cycles were run.

    A part is its share of the watched run's phase, of the time that the phase takes unwatched.

    Args:
        how: which.
        seen: of the run that nothing watched, a round each.
        watched: of the other one: on a CPU in the same rounds, on a GPU traced once, behind them.
        on_cpu: what watching cost is told in time of the process, which other processes do not lengthen.
    """
    phases = means([each.phases for each in seen])
    gaps = [each.gaps for each in seen if each.gaps is not None] or [each.gaps or 0.0 for each in watched]
    marked = [each.marked for each in seen if each.marked is not None]
    return way_of(
        how,
        speed(seen),
        {name: 1e3 * seconds for name, seconds in phases.items()},
        1e3 * fmean(gaps),
        _parts(phases, watched),
        _slowdown(seen, watched, on_cpu=on_cpu),
        paired(marked, [1.0] * len(marked), less=1.0) if marked else None,
    )


def paired(above: Sequence[float], below: Sequence[float], less: float = 0.0) -> Paired:
    """The ratio within rounds, less a number."""
    ratio = paired_ratio(above, below)
    low, high = ratio.bounds or (None, None)
    return Paired(
        median=ratio.value - less,
        low=None if low is None else low - less,
        high=None if high is None else high - less,
    )


def speed(seen: Sequence[Seen]) -> Speed:
    """Over all rounds."""
    windows = [window for each in seen for window in each.windows]
    tokens, seconds = sum(each.tokens for each in windows), sum(each.seconds for each in windows)
    return Speed(
        tok_s=tokens / seconds,
        low=min(each.tok_s for each in seen),
        high=max(each.tok_s for each in seen),
        tokens=tokens,
        cycles=sum(each.cycles for each in windows),
        seconds=seconds,
    )


def _parts(phases: dict[str, float], watched: Sequence[Seen]) -> tuple[Part, ...]:
    time, count = means([each.time for each in watched]), means([each.count for each in watched])
    taken = means([each.phases for each in watched])
    factor = {name: phases[name] / taken[name] if taken.get(name) else 1.0 for name in phases}
    return tuple(
        Part(
            phase=phase,
            name=name,
            ms=1e3 * factor.get(phase, 1.0) * time[phase, name],
            count=count.get((phase, name), 0.0),
        )
        for phase in (*PHASES, BETWEEN)
        for name in PARTS
        if (phase, name) in time
    )


def _slowdown(seen: Sequence[Seen], watched: Sequence[Seen], *, on_cpu: bool) -> Paired:
    if on_cpu:
        return paired([each.cpu_s for each in watched], [each.cpu_s for each in seen], less=1.0)
    slower = fmean(each.cycle_s for each in watched) / fmean(each.cycle_s for each in seen)
    return Paired(median=slower - 1.0, low=None, high=None)
