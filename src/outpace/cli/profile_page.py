"""The page of a profile: one table that reconciles."""

from __future__ import annotations

import textwrap

from outpace.lab.profile.record import ProfileRecord, Way
from outpace.lab.profile.table import heading, rows, said

WIDTH = 100
NAME = 26
WIDTHS = (8, 10, 9, 9)
"""Of the columns behind the times."""


def lines(record: ProfileRecord) -> list[str]:
    """For people."""
    first, *others = heading(record)
    return [
        f"{record.model} on {record.device}, {record.dtype}, k {record.k}, one stream, context {record.context:,.0f} "
        f"on average, {record.num_rounds} rounds of {record.prompts} answers",
        "",
        _client(record.served),
        "",
        _line(first, others, len(record.ways)),
        *(_line("  " * row.depth + row.name, row.cells, len(record.ways)) for row in rows(record)),
        *_launch(record),
        "",
        *_below(record),
    ]


def _client(way: Way) -> str:
    speed = way.speed
    return (
        f"client {speed.tok_s:.1f} tok/s ({speed.low:.1f} … {speed.high:.1f} by round) = accept length "
        f"{way.accept_length:.3f} ÷ cycle {way.cycle_ms:.3f} ms"
    )


def _line(name: str, cells: tuple[str, ...] | list[str], num_ways: int) -> str:
    widths = (11,) * num_ways + WIDTHS
    return f"{name:{NAME}}{''.join(f'{cell:>{width}}' for cell, width in zip(cells, widths, strict=True))}".rstrip()


def _launch(record: ProfileRecord) -> list[str]:
    if record.launch_ms is None:
        return []
    verify = record.launch_ms["verify"]
    return [f"{'launch cost of a verify':{NAME}}{verify:>22.3f}   eagerly, less as graphs"]


def _below(record: ProfileRecord) -> list[str]:
    """What stands under the table."""
    found = []
    if record.plain is not None and record.break_even is not None and record.speedup is not None:
        plain, ratio = record.plain, record.speedup
        span = "" if ratio.low is None else f" ({ratio.low:.2f} … {ratio.high:.2f})"
        found.append(
            f"plain step {plain.cycle_ms:.3f} ms, {plain.tok_s:.1f} tok/s ({plain.low:.1f} … {plain.high:.1f}): "
            f"break-even accept length {record.break_even:.2f}; speculation {said(ratio)}, {ratio.median:.2f}×{span}"
        )
    if record.acceptance_at:
        accepted = " ".join(f"{chance:.2f}" for chance in record.acceptance_at)
        found.append(f"acceptance by position, given those before: {accepted}")
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
