"""The page of a profile: one table that reconciles."""

from __future__ import annotations

import textwrap

from outpace.lab.intervals.interval import Interval
from outpace.lab.intervals.verdict import lead, settles, times
from outpace.lab.profile.record import ProfileRecord, Way
from outpace.lab.profile.table import costs, heading, rounds_of, rows
from outpace.wording import break_even, count_of

WIDTH = 100
NAME = 26
WIDTHS = (8, 10, 9, 9)
"""Of the columns behind the times."""


def lines(record: ProfileRecord) -> list[str]:
    """For people."""
    first, *others = heading(record)
    return [
        f"{record.model} on {record.device}, {record.dtype}, k {record.k}, one stream, context {record.context:,.0f} "
        f"on average, {count_of(record.num_rounds, 'round')} of {count_of(record.prompts, 'answer')}",
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


def _pays(record: ProfileRecord, ratio: Interval) -> list[str]:
    """The verdict, and what would settle it."""
    if record.simulated:
        return [f"{times(ratio)} plain decoding's speed, under simulated acceptance, which says nothing of a model"]
    over = rounds_of(record)
    settling = settles(ratio, over)
    return [f"{lead(ratio, over)}: its speed over plain decoding's is {times(ratio)}. {settling or ''}".rstrip()]


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
        found.append(
            f"plain step {plain.cycle_ms:.3f} ms, {plain.tok_s:.1f} tok/s ({plain.low:.1f} … {plain.high:.1f}): "
            f"break-even accept length {break_even(record.break_even)}"
        )
        found += _pays(record, ratio.interval)
    if record.acceptance_at:
        pairs = zip(record.acceptance_at, record.judged_at, strict=True)
        accepted = ", ".join(f"{chance:.2f} of {judged}" for chance, judged in pairs)
        found.append(f"acceptance by position, given those before: {accepted}")
    found += costs(record)
    found.append(f"parts are seen by {record.seen_by}; each is its share of the watched phase, of the phase unwatched")
    if record.why_no_limits is None:
        copy, matrix = record.rates["copy_gb_s"], record.rates["matrix_tflops"]
        found.append(f"limits: bytes at {copy:,.1f} GB/s, or products at {matrix:,.2f} Tflop/s (bf16) where longer")
    else:
        found.append(f"no limits: {record.why_no_limits}")
    found += [] if record.why_one_way is None else [record.why_one_way]
    found += [f"other: {name} {ms:.4f} ms" for name, ms in record.unknown.items()]
    found += record.notes
    return [line for text in found for line in textwrap.wrap(text, WIDTH, subsequent_indent="  ")]
