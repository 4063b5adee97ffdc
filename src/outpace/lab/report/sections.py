"""A section for each result: its figures as drawings and tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from outpace.lab.bench.record import BenchRecord
from outpace.lab.breakeven.balance import Balance
from outpace.lab.breakeven.heat import Heat, by_acceptance_and_verify
from outpace.lab.intervals.bootstrap import Spread
from outpace.lab.paired.record import CompareRecord
from outpace.lab.profile.record import PHASES, ProfileRecord
from outpace.lab.profile.table import HOW, heading, rows
from outpace.lab.report import rank, svg
from outpace.lab.report.files import Breakeven, Doctor, HeatMap, Result, Source
from outpace.lab.report.html import Markup, join, table, tag
from outpace.lab.report.rank_line import Rank
from outpace.wording import count_of

MOST_BLOCKS = 60
"""Of a comparison that are listed."""


def section(source: Source) -> Markup:
    """All that is shown of a result, but for the sentences that lead the page."""
    return tag(
        "section",
        tag("h2", _title(source.result)),
        tag("p", f"from {source.name}", class_="note"),
        *_inside(source.result),
    )


def _title(result: Result) -> str:
    match result:
        case ProfileRecord():
            return f"Where a cycle's time goes: {result.model}"
        case BenchRecord():
            return f"What clients see: {result.server.model} at {result.server.url}"
        case CompareRecord():
            return f"{result.b.label} against {result.a.label}"
        case Breakeven():
            return "Where speculation pays"
        case Doctor():
            return "What the doctor found"
        case Rank():
            return f"Where a rank's time goes: {result.settings.shape}"


def _inside(result: Result) -> list[Markup]:
    match result:
        case ProfileRecord():
            return _profile(result)
        case BenchRecord():
            return _bench(result)
        case CompareRecord():
            return _compare(result)
        case Breakeven():
            return _breakeven(result)
        case Doctor():
            return _doctor(result)
        case Rank():
            return rank.inside(result)


def _profile(record: ProfileRecord) -> list[Markup]:
    way = record.served
    found = [
        tag(
            "p",
            f"{record.device}, {record.dtype}, k {record.k}, one stream, context {record.context:,.0f} on average. "
            f"{way.speed.tok_s:.1f} tok/s = accept length {way.accept_length:.3f} ÷ cycle {way.cycle_ms:.3f} ms.",
        ),
        svg.stacked("One cycle by phase, in milliseconds", _stacks(record), "ms"),
        svg.legend({name: name for name in (*PHASES, "gaps", "unexplained")}),
        table(
            heading(record), [(tag("span", row.name, class_=f"depth{row.depth}"), *row.cells) for row in rows(record)]
        ),
    ]
    if record.acceptance_at:
        found += [
            tag("h3", "Acceptance by position, given that the drafts before stood"),
            _positions(record.acceptance_at, record.judged_at),
        ]
    if record.break_even is not None and way.phases_ms.get("draft"):
        heat = by_acceptance_and_verify(
            Balance(
                accept_length=way.accept_length,
                cycle_s=way.cycle_ms / 1e3,
                step_s=way.cycle_ms / record.break_even / 1e3,
                draft_s=way.phases_ms["draft"] / 1e3,
                verify_s=way.phases_ms["verify"] / 1e3,
                k=record.k,
            )
        )
        found += [
            tag("h3", "Where speculation pays"),
            _heat(heat, heat.values),
        ]
    other = [f"other: {name} {ms:.4f} ms" for name, ms in record.unknown.items()]
    return [*found, _notes([*filter(None, (record.why_one_way, record.why_no_limits)), *other, *record.notes])]


def _stacks(record: ProfileRecord) -> list[tuple[str, list[tuple[str, float, str]]]]:
    """A bar for each way, and the plain step."""
    stacks = []
    for way in record.ways:
        pieces = [(phase, way.phases_ms[phase], phase) for phase in PHASES if phase in way.phases_ms]
        pieces += [("gaps", way.gaps_ms, "gaps"), ("unexplained", way.unexplained_ms, "unexplained")]
        stacks.append((f"cycle, {HOW[way.how]}", pieces))
    if record.plain is not None:
        stacks.append(("plain step", [("plain step", record.plain.cycle_ms, "plain")]))
    return stacks


def _bench(record: BenchRecord) -> list[Markup]:
    figures = record.figures
    listed = [
        ("decode tok/s of a stream", figures.decode_tok_s, 1.0, ""),
        ("tok/s per user", figures.tok_s_per_user, 1.0, ""),
        ("time to first token", figures.ttft_s, 1e3, "ms"),
        ("time per output token", figures.tpot_s, 1e3, "ms"),
        ("inter-token latency", figures.inter_token_s, 1e3, "ms"),
        ("inter-chunk latency", figures.inter_chunk_s, 1e3, "ms"),
    ]
    total = "" if figures.total_tok_s is None else f", {figures.total_tok_s.value:.1f} tok/s in total"
    found = [
        tag(
            "p",
            f"{count_of(figures.num_requests, 'request')}, {figures.num_failed} failed, "
            f"{figures.mean_concurrency:.1f} at a time on average{total}. Tokens counted by {record.counted_by}.",
        ),
        table(
            ("", "median", "95% interval", "p5", "p95", "p99"),
            [_spread(name, spread, scale, unit) for name, spread, scale, unit in listed if spread is not None],
        ),
    ]
    if figures.by_context:
        lines = [
            (
                f"beyond {each.above:,} tokens" if each.to is None else f"{each.above:,} … {each.to:,} tokens",
                each.tok_s.value,
                each.tok_s.low,
                each.tok_s.high,
            )
            for each in figures.by_context
        ]
        found += [
            tag("h3", "Decode tok/s by context length"),
            svg.bars("Decode tok/s of one stream by context length", lines, "tok/s"),
        ]
    for each in record.acceptance:
        rate = "" if each.acceptance_rate is None else f", {each.acceptance_rate:.0%} of drafts accepted"
        found.append(tag("p", f"Accept length {each.accept_length:.3f}{rate}, by its {each.source}."))
    if (positions := next((each.by_position for each in record.acceptance if each.by_position), None)) is not None:
        found += [tag("h3", "Accepted at each position, of the cycles that drafted there"), _positions(positions)]
    return [*found, _notes(record.notes)]


def _spread(name: str, spread: Spread, scale: float, unit: str) -> tuple[str, ...]:
    interval = (
        "" if spread.low is None or spread.high is None else f"{scale * spread.low:.2f} … {scale * spread.high:.2f}"
    )
    return (
        f"{name}, {unit}" if unit else name,
        f"{scale * spread.median:.2f}",
        interval,
        *(f"{scale * value:.2f}" for value in (spread.p5, spread.p95, spread.p99)),
    )


def _compare(record: CompareRecord) -> list[Markup]:
    verdict = record.verdict
    ratios = [
        (name, ratio)
        for name, ratio in (("B ÷ A", verdict.ratio), ("A ÷ A, the control", verdict.control))
        if ratio is not None
    ]
    listed = [
        (
            str(block.index),
            *(" ".join(f"{run.tok_s:.1f}" for run in block.runs if run.role == role) for role in ("A", "B", "A'")),
            block.excluded or "",
        )
        for block in record.blocks[:MOST_BLOCKS]
    ]
    more = len(record.blocks) - len(listed)
    return [
        tag(
            "p",
            f"{verdict.kind}, by {record.measure}; {count_of(verdict.num_blocks, 'block')} counted, "
            f"{verdict.num_excluded} excluded.",
        ),
        svg.bars(
            "Ratios of speed with their intervals",
            [(name, each.value, each.low, each.high) for name, each in ratios],
            "×",
            mark=1.0,
        ),
        table(("block", "A tok/s", "B tok/s", "A' tok/s", "excluded"), listed),
        _notes(
            [*verdict.reasons, *([f"not listed: {count_of(more, 'more block')}"] if more > 0 else []), *record.notes]
        ),
    ]


def _breakeven(found: Breakeven) -> list[Markup]:
    speeds = [
        (
            f"{each.tok_s:.1f} tok/s",
            f"{each.accept_length:.2f}" if each.possible_with_k else f"{each.accept_length:.2f}, more than k allows",
            f"{each.verify_ms:.2f} ms" if each.verify_ms > 0 else "none is quick enough",
        )
        for each in found.speeds
    ]
    head = ("to reach", "accept length, cycle as it is", "or verify, accept length as it is")
    maps = [_heat(each, each.ratio) for each in found.heat]
    return [*maps, *([tag("h3", "What a speed takes"), table(head, speeds)] if speeds else [])]


def _doctor(found: Doctor) -> list[Markup]:
    parts = [
        table(
            ("question", "answer", "in full"),
            [
                (
                    each.question,
                    each.answer,
                    join(each.text, tag("span", f" [{each.confidence} confidence]", class_="note")),
                )
                for each in found.findings
            ],
            numbers_from=3,
        ),
    ]
    if found.advice:
        listed = [
            (each.action, f"{each.tok_s:.1f}", f"{each.over_now - 1:+.0%}", f"{each.over_plain:.2f}×", each.confidence)
            for each in found.advice
        ]
        parts += [tag("h3", "What to try"), table(("change", "tok/s", "on now", "of plain", "confidence"), listed)]
    if found.unknown:
        asked = [(each.question, each.measurement) for each in found.unknown]
        parts += [
            tag("h3", "What this cannot tell, and what would"),
            table(("question", "measurement"), asked, numbers_from=2),
        ]
    return parts


def _positions(chances: Sequence[float], judged: Sequence[int] = ()) -> Markup:
    """Names say of how many drafts a share is, where that is known."""
    names = [f"draft {place + 1}{f', of {judged[place]:,}' if judged else ''}" for place in range(len(chances))]
    lines = [(name, chance, None, None) for name, chance in zip(names, chances, strict=True)]
    return svg.bars("Acceptance by position", lines, "", "accept", most=1.0)


def _heat(heat: Heat | HeatMap, values: Sequence[Sequence[float]]) -> Markup:
    framed = "" if heat.here is None else " The frame is where it stands now."
    says = f"Speed over plain decoding: above 1, in green, speculation pays; below, in red, it costs speed.{framed}"
    drawn = svg.cells((heat.down, heat.across), heat.rows, heat.columns, values, heat.notes, heat.here)
    return join(tag("p", says, class_="note"), drawn)


def _notes(notes: Sequence[str]) -> Markup:
    return join(*(tag("p", note, class_="note") for note in notes))


def fingerprint(source: Source) -> Markup | None:
    """The machine and the settings behind a result, folded away; None where it holds none."""
    match source.result:
        case ProfileRecord() as record:
            kept: dict[str, Any] = {"machine": record.machine, "settings": record.settings, "rates": record.rates}
        case BenchRecord() as record:
            kept = {"client": record.client, "server": record.server.settings, "server version": record.server.version}
        case CompareRecord() as record:
            kept = {"client": record.client}
            for name, side in (("A", record.a), ("B", record.b)):
                kept |= {f"{name}, commit": side.commit, name: side.server.settings}
        case Doctor(machine=dict() as facts):
            kept = {"machine": facts}
        case Rank() as found:
            kept = {"machine": found.machine, "rates": found.rates}
        case _:
            return None
    return tag("details", tag("summary", source.name), *(_kept(name, value) for name, value in kept.items() if value))


def _kept(name: str, value: Any) -> Markup:
    """Flat facts as a table, whatever is nested as JSON."""
    if not isinstance(value, Mapping):
        return tag("p", f"{name}: {value}")
    facts = [
        (key, fact if isinstance(fact, str | int | float) else json.dumps(fact, ensure_ascii=False))
        for key, fact in value.items()
    ]
    return join(tag("h3", name), table(("", ""), [tuple(fact) for fact in facts], numbers_from=2))
