"""What a manager reads first: of each result whether speculation pays, why, and how far that can be trusted or what
comes next.

Every sentence is of one result's figures: two results may be of two models, or of two machines, and a sentence on one
says nothing of the other. A verdict follows from an interval; where there is none, that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outpace.lab.bench.figures import Figures
from outpace.lab.bench.record import BenchRecord
from outpace.lab.intervals.bootstrap import MIN_VALUES, Rate, Spread
from outpace.lab.intervals.verdict import by_given_figures, lead, settles, times
from outpace.lab.paired.record import CompareRecord
from outpace.lab.profile.record import PHASES, Paired, ProfileRecord, Speed
from outpace.lab.profile.table import own_cost, rounds_of
from outpace.lab.report import rank
from outpace.lab.report.files import Breakeven, Doctor, Source
from outpace.lab.report.rank_line import Rank
from outpace.wording import break_even, count_of

CANNOT = "Whether speculation pays cannot be said: no file holds plain decoding measured beside it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """What one result says, and its file; None is what none says."""

    name: str | None
    sentences: tuple[str, ...]


def leads(sources: Sequence[Source]) -> list[Lead]:
    """One of each result that has something to say; those first that tell whether speculation pays."""
    found: list[tuple[bool, Lead]] = []
    for source in sources:
        pays = _pays(source)
        said = tuple(each for each in (pays, _why(source), _next(source)) if each is not None)
        if said:
            found.append((pays is None, Lead(name=source.name, sentences=said)))
    told = [each for _, each in sorted(found, key=lambda each: each[0])]
    return told if any(not silent for silent, _ in found) else [Lead(name=None, sentences=(CANNOT,)), *told]


def _pays(source: Source) -> str | None:
    match source.result:
        case ProfileRecord(plain=Speed() as plain, speedup=Paired() as speedup) as record:
            speeds = f"{record.served.speed.tok_s:.1f} tok/s against {plain.tok_s:.1f} plain"
            where = f"{record.model} on {record.device}"
            if record.simulated:
                return f"Acceptance is simulated, so only times mean anything: {where} ran at {speeds}."
            return f"{lead(speedup.interval, rounds_of(record))} for {where}: {speeds}, {times(speedup.interval)}."
        case Doctor(verdict=[pays, *_], subject=subject):
            return pays if subject is None or subject in pays else f"{subject}: {pays}"
        case CompareRecord() as record:
            return _compared(record)
        case Breakeven(ratio=float() as ratio, speculative_tok_s=float() as tok_s, plain_tok_s=float() as plain_tok_s):
            speeds = f"{tok_s:.1f} tok/s against {plain_tok_s:.1f} plain"
            return f"{by_given_figures(ratio)}: {speeds}, {ratio:.2f}×."
        case Rank() as found:
            return rank.sentence(found)
        case _:
            return None


def _compared(record: CompareRecord) -> str:
    verdict, a, b = record.verdict, record.a.label, record.b.label
    if verdict.kind == "inconclusive" or verdict.ratio is None:
        why = f": {verdict.reasons[0]}" if verdict.reasons else ""
        return f"Whether {b} is faster than {a} is not settled{why}."
    ratio = verdict.ratio
    span = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f} … {ratio.high:.3f})"
    if verdict.kind == "equivalent":
        return f"{b} is as fast as {a} within {verdict.margin:.0%}: {ratio.value:.3f} times its speed{span}."
    return f"{b} is {verdict.kind} than {a}: {ratio.value:.3f} times its speed{span}."


def _why(source: Source) -> str | None:
    match source.result:
        case ProfileRecord() as record:
            way = record.served
            phase = max((name for name in PHASES if name in way.phases_ms), key=lambda name: way.phases_ms[name])
            share = way.phases_ms[phase] / way.cycle_ms
            brings = f"a cycle brings {way.accept_length:.2f} tokens"
            even = "" if record.break_even is None else f" and breaks even at {break_even(record.break_even)}"
            return f"{phase.capitalize()} takes {share:.0%} of a cycle of {way.cycle_ms:.1f} ms; {brings}{even}."
        case Doctor(verdict=[_, why, *_]):
            return why
        case Breakeven(break_even_accept_length=float() as even_at, accept_length=float() as length):
            return f"A cycle costs {even_at:.2f} plain steps and brings {length:.2f} tokens."
        case BenchRecord(figures=Figures(by_context=[first, *_, last])) as record:
            return (
                f"A stream of {record.server.model} wrote {_speed(first.tok_s)} within its first {first.to:,} tokens "
                f"of context and {_speed(last.tok_s)} beyond {last.above:,}."
            )
        case BenchRecord(figures=Figures(decode_tok_s=Spread() as speed)) as record:
            return f"A stream of {record.server.model} wrote {_speed(speed)}."
        case _:
            return None


def _next(source: Source) -> str | None:
    match source.result:
        case Doctor(verdict=[_, _, what, *_]):
            return what
        case ProfileRecord() as record:
            way = record.served
            adds_up = "add up" if way.adds_up else "do not add up yet"
            unexplained = f"{abs(way.unexplained_share):.1%} of the cycle is unexplained"
            trust = f"The parts {adds_up}: {unexplained}, and {own_cost(way)}."
            more = settles(record.speedup.interval, rounds_of(record)) if record.speedup else None
            return trust if more is None or record.simulated else f"{trust} {more}"
        case Breakeven(ratio=float() as ratio, break_even_accept_length=float() as even_at) if ratio <= 1.0:
            return _until(even_at, source.result.break_even_verify_ms)
        case CompareRecord(cut_short=False) as record if record.verdict.more_blocks is not None:
            return f"About {count_of(record.verdict.more_blocks, 'more block')} would settle it."
        case CompareRecord(cut_short=True) as record:
            return f"It was cut short: {len(record.blocks)} of {count_of(record.num_blocks, 'block')} were measured."
        case BenchRecord(cut_short=True) as record:
            asked = count_of(record.load.num_prompts, "request")
            return f"It was cut short: {record.figures.num_requests} of {asked} were answered."
        case BenchRecord() as record if record.figures.num_failed:
            failed = f"{record.figures.num_failed} of {count_of(record.figures.num_requests, 'request')} failed"
            return f"{failed}; the figures are those of the others."
        case BenchRecord() as record:
            num = record.figures.num_requests
            return "The one request was answered." if num == 1 else f"All {num} requests were answered."
        case _:
            return None


def _speed(found: Rate | Spread) -> str:
    """With its interval."""
    value = found.median if isinstance(found, Spread) else found.value
    if found.low is None or found.high is None:
        return f"{value:.1f} tok/s (too few requests for an interval, which takes {MIN_VALUES})"
    return f"{value:.1f} tok/s ({found.low:.1f} … {found.high:.1f})"


def _until(even_at: float, verify_ms: float | None) -> str:
    """What has to change before speculation pays."""
    quicker = f" or a verify takes less than {verify_ms:.1f} ms" if verify_ms is not None and verify_ms > 0.0 else ""
    return f"Leave speculation off until a cycle brings more than {even_at:.2f} tokens{quicker}."
