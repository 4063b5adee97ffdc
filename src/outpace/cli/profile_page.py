"""The page of a profile: one table that reconciles."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from outpace.lab.profile.parts import PARTS
from outpace.lab.profile.record import PHASES, ProfileRecord, Way

WIDTH = 100
NAME = 26
FAR = 99


def lines(record: ProfileRecord) -> list[str]:
    """For people."""
    way = record.served
    return [
        f"{record.model} on {record.device}, {record.dtype}, k {record.k}, one stream, context {record.context:,.0f} "
        f"on average, {record.num_rounds} rounds of {record.prompts} answers",
        "",
        *_client(way),
        "",
        _heading(record),
        *_table(record),
        "",
        *_below(record),
    ]


def _client(way: Way) -> list[str]:
    speed = way.speed
    return [
        f"client {speed.tok_s:.1f} tok/s ({speed.low:.1f} … {speed.high:.1f} by round) = accept length "
        f"{way.accept_length:.3f} ÷ cycle {way.cycle_ms:.3f} ms"
    ]


def _heading(record: ProfileRecord) -> str:
    ways = [f"{'as graphs' if way.how == 'graph' else 'eagerly':>11}" for way in record.ways]
    return f"{'ms a cycle':{NAME}}{''.join(ways)}{'share':>8}{'limit':>10}{'× limit':>9}{'calls':>9}"


def _table(record: ProfileRecord) -> list[str]:
    rows = [_row(record, "cycle", [way.cycle_ms for way in record.ways])]
    for phase in PHASES:
        if not any(way.phases_ms.get(phase) for way in record.ways):
            continue
        limit = sum(record.limits_ms.get(phase, {}).values()) or None
        rows.append(_row(record, f"  {phase}", [way.phases_ms.get(phase) for way in record.ways], limit))
        rows += _parts(record, phase)
    rows.append(_row(record, "  gaps between cycles", [way.gaps_ms for way in record.ways]))
    rows.append(_row(record, "  unexplained", [way.unexplained_ms for way in record.ways]))
    if record.launch_ms is not None:
        verify = record.launch_ms["verify"]
        rows.append(f"{'launch cost of a verify':{NAME}}{verify:>22.3f}   eagerly, less as graphs")
    return rows


def _parts(record: ProfileRecord, phase: str) -> list[str]:
    """Of a phase that was taken apart."""
    limits, rows = record.limits_ms.get(phase, {}), []
    for name in PARTS:
        values = [way.part_ms(phase, name) for way in record.ways]
        if any(value is not None for value in values):
            count = next((p.count for p in record.served.parts if (p.phase, p.name) == (phase, name)), None)
            rows.append(_row(record, f"    {name}", values, limits.get(name), count))
    if rows:
        rows.append(_row(record, "    in no part", [way.in_no_part_ms(phase) for way in record.ways]))
    return rows


def _row(
    record: ProfileRecord,
    name: str,
    values: Sequence[float | None],
    limit_ms: float | None = None,
    count: float | None = None,
) -> str:
    times = "".join(f"{'':>11}" if value is None else f"{value:>11.3f}" for value in values)
    first = values[0]
    share = "" if first is None else f"{first / record.served.cycle_ms:.1%}"
    limit = "" if limit_ms is None else f"{limit_ms:.3f}"
    over = _over(first, limit_ms)
    calls = f"{count:.0f}" if count else ""
    return f"{name:{NAME}}{times}{share:>8}{limit:>10}{over:>9}{calls:>9}".rstrip()


def _over(ms: float | None, limit_ms: float | None) -> str:
    """How many times the limit; far beyond it the part is not bound by bytes, and the number would say nothing."""
    if ms is None or not limit_ms:
        return ""
    return f"{ms / limit_ms:.2f}" if ms < FAR * limit_ms else f"> {FAR}"


def _below(record: ProfileRecord) -> list[str]:
    """What stands under the table."""
    found = []
    if record.plain is not None and record.break_even is not None and record.speedup is not None:
        plain, pays = record.plain, "pays" if record.speedup > 1.0 else "does not pay"
        found.append(
            f"plain step {plain.cycle_ms:.3f} ms, {plain.tok_s:.1f} tok/s ({plain.low:.1f} … {plain.high:.1f}): "
            f"break-even accept length {record.break_even:.2f}; speculation {pays}, {record.speedup:.2f}×"
        )
    if record.acceptance_at:
        found.append(
            "acceptance by position, given those before: " + " ".join(f"{a:.2f}" for a in record.acceptance_at)
        )
    found += [
        f"watching cost {_slowdown(way)}{' of the eager run' if place else ''}" for place, way in enumerate(record.ways)
    ]
    found.append(f"parts are seen by {record.seen_by}; 'in no part' is the phase, unwatched, less its parts, watched")
    if record.why_no_limits is None:
        copy, matrix = record.rates["copy_gb_s"], record.rates["matrix_tflops"]
        found.append(f"limits: bytes at {copy:,.1f} GB/s, or products at {matrix:,.2f} Tflop/s (bf16) where longer")
    else:
        found.append(f"no limits: {record.why_no_limits}")
    found += [] if record.why_one_way is None else [record.why_one_way]
    found += [f"other: {name} {ms:.4f} ms" for name, ms in record.unknown.items()]
    found += record.notes
    return [line for text in found for line in textwrap.wrap(text, WIDTH, subsequent_indent="  ")]


def _slowdown(way: Way) -> str:
    found = way.slowdown
    if found.low is None or found.high is None:
        return f"{found.median:+.1%}"
    return f"{found.median:+.1%} ({found.low:+.1%} … {found.high:+.1%})"
