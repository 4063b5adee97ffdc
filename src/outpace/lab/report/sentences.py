"""Three sentences that a manager can read: does it pay, why, and how far the figures can be trusted or what comes next.

Each is made of one result's figures, the first that can tell; where none can, the sentence says so and what would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outpace.lab.bench.figures import Figures
from outpace.lab.bench.record import BenchRecord
from outpace.lab.paired.record import CompareRecord
from outpace.lab.profile.record import PHASES, Paired, ProfileRecord, Speed
from outpace.lab.profile.table import cost, said, times
from outpace.lab.report.files import Breakeven, Doctor, Source
from outpace.wording import count_of

ENOUGH = 0.03
"""Of a cycle: what may be unexplained of a profile that adds up."""

Tell = Callable[[Source], str | None]


def sentences(sources: Sequence[Source]) -> list[tuple[str, str | None]]:
    """(sentence, the file it rests on)."""
    asked: list[tuple[Tell, str]] = [
        (_pays, "Whether speculation pays cannot be said: no file holds plain decoding measured beside it."),
        (_why, "Why it is as fast as it is cannot be said: no file holds the parts of a cycle."),
        (_next, "Nothing in these files asks for a change."),
    ]
    return [_first(sources, tell, otherwise) for tell, otherwise in asked]


def _first(sources: Sequence[Source], tell: Tell, otherwise: str) -> tuple[str, str | None]:
    for source in sources:
        if (said := tell(source)) is not None:
            return said, source.name
    return otherwise, None


def _pays(source: Source) -> str | None:
    match source.result:
        case ProfileRecord(plain=Speed() as plain, speedup=Paired() as speedup) as record:
            speeds = f"{record.served.speed.tok_s:.1f} tok/s against {plain.tok_s:.1f} plain"
            where = f"{record.model} on {record.device}"
            if record.simulated:
                return f"Acceptance is simulated, so only times mean anything: {where} ran at {speeds}."
            return f"Speculation {said(speedup)} for {where}: {speeds}, {times(speedup)}."
        case Doctor(verdict=[pays, *_]):
            return pays
        case CompareRecord() as record:
            return _compared(record)
        case Breakeven(ratio=float() as ratio, speculative_tok_s=float() as tok_s, plain_tok_s=float() as plain_tok_s):
            words = "pays" if ratio > 1.0 else "does not pay"
            speeds = f"{tok_s:.1f} tok/s against {plain_tok_s:.1f} plain"
            return f"By the figures that were given, speculation {words}: {speeds}, {ratio:.2f}×."
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
            even = "" if record.break_even is None else f" and breaks even at {record.break_even:.2f}"
            return f"{phase.capitalize()} takes {share:.0%} of a cycle of {way.cycle_ms:.1f} ms; {brings}{even}."
        case Doctor(verdict=[_, why, *_]):
            return why
        case Breakeven(break_even_accept_length=float() as even_at, accept_length=float() as length):
            return f"A cycle costs {even_at:.2f} plain steps and brings {length:.2f} tokens."
        case BenchRecord(figures=Figures(by_context=[first, *_, last])) as record:
            return (
                f"A stream of {record.server.model} wrote {first.tok_s.value:.1f} tok/s within its first {first.to:,} "
                f"tokens of context and {last.tok_s.value:.1f} tok/s beyond {last.above:,}."
            )
        case _:
            return None


def _next(source: Source) -> str | None:
    match source.result:
        case Doctor(verdict=[_, _, what, *_]):
            return what
        case ProfileRecord() as record:
            way = record.served
            adds_up = "add up" if abs(way.unexplained_share) <= ENOUGH else "do not add up yet"
            unexplained = f"{abs(way.unexplained_share):.1%} of the cycle is unexplained"
            return f"The parts {adds_up}: {unexplained}, and watching it cost {cost(way.slowdown)}."
        case Breakeven(ratio=float() as ratio, break_even_accept_length=float() as even_at) if ratio <= 1.0:
            return _until(even_at, source.result.break_even_verify_ms)
        case CompareRecord() as record if record.verdict.more_blocks is not None:
            return f"About {count_of(record.verdict.more_blocks, 'more block')} would settle it."
        case BenchRecord() as record if record.figures.num_failed:
            failed = f"{record.figures.num_failed} of {count_of(record.figures.num_requests, 'request')} failed"
            return f"{failed}; the figures are those of the others."
        case BenchRecord() as record:
            num = record.figures.num_requests
            return "The one request was answered." if num == 1 else f"All {num} requests were answered."
        case _:
            return None


def _until(even_at: float, verify_ms: float | None) -> str:
    """What has to change before speculation pays."""
    quicker = f" or a verify takes less than {verify_ms:.1f} ms" if verify_ms is not None and verify_ms > 0.0 else ""
    return f"Leave speculation off until a cycle brings more than {even_at:.2f} tokens{quicker}."
