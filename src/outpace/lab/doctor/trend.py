"""Finding: did throughput fall with context or time, and do accept length and verify explain it?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TypeVar

from outpace.lab.doctor.case import Case, Measures
from outpace.lab.doctor.evidence import Phases, Window
from outpace.lab.doctor.finding import Finding
from outpace.lab.intervals.rank_sums import LEAST, ratio_bounds

T = TypeVar("T")

MIN_WINDOWS = 8
FELL = 0.85
"""A last quarter slower than this part of the first has fallen, if the interval of the two says that any has."""
FLAT = 0.1
"""What moves less than this part from its first to its last quarter is flat."""


def findings(case: Case, m: Measures) -> Iterator[Finding]:
    """One, if there are windows enough."""
    run = case.subject
    series = [*([run.first] if run.first and run.first not in run.windows else []), *run.windows]
    if len(series) < MIN_WINDOWS:
        return
    early, late = _ends(series)
    ratio = median(w.tok_s for w in late) / median(w.tok_s for w in early)
    bounds = ratio_bounds([w.tok_s for w in late], [w.tok_s for w in early])
    numbers = {
        "first_window_tok_s": series[0].tok_s,
        "first_quarter_tok_s": median(w.tok_s for w in early),
        "last_quarter_tok_s": median(w.tok_s for w in late),
        "last_window_tok_s": series[-1].tok_s,
        "lowest_tok_s": min(w.tok_s for w in series),
        "ratio": ratio,
        "ratio_95": None if bounds is None else [round(bound, 4) for bound in bounds],
    }
    fell = ratio < FELL and bounds is not None and bounds[1] < 1.0
    yield Finding(
        question="did throughput fall with context or time",
        answer=_answer(series, run.phases) if fell else "no",
        text=_fall(series, run.phases, m) if fell else _steady(series, early, late),
        confidence="high" if fell else "medium",
        evidence=[series[0].cite, series[-1].cite],
        numbers=numbers,
    )


def _steady(series: Sequence[Window], early: Sequence[Window], late: Sequence[Window]) -> str:
    return (
        f"Over {sum(w.count for w in series)} windows it stays: median {median(w.tok_s for w in early):.1f} tok/s in "
        f"the first {len(early)}, {median(w.tok_s for w in late):.1f} in the last {len(late)}."
    )


def _answer(series: Sequence[Window], phases: Sequence[Phases]) -> str:
    flat = [name for name, change in _changes(series, phases).items() if abs(change) <= FLAT]
    return "yes, unexplained" if "verify" in flat and "accept length" in flat else "yes"


def _fall(series: Sequence[Window], phases: Sequence[Phases], m: Measures) -> str:
    first, last, lowest = series[0], series[-1], min(series, key=lambda w: w.tok_s)
    alone = all(window.tok_s < first.tok_s for window in series[1:])
    text = f"{first.tok_s:.0f} tok/s is the first window only; later" if alone else f"From {first.tok_s:.0f} tok/s the"
    text += f" windows fall to {last.tok_s:.0f} (lowest {lowest.tok_s:.1f})"
    if first.tokens is not None and last.tokens is not None:
        text += f" while the KV cache goes from {first.tokens:,} to {last.tokens:,} tokens"
    text += ". " + _explained(_changes(series, phases))
    return text + _implied(first, lowest, m)


def _explained(changes: dict[str, float]) -> str:
    flat = [name for name, change in changes.items() if abs(change) <= FLAT]
    moved = [f"{name} ({change:+.0%})" for name, change in changes.items() if abs(change) > FLAT]
    if not changes:
        return "Neither accept length nor phases are known, so nothing says why."
    text = f"What changed with it: {', '.join(moved)}." if moved else ""
    if flat:
        stay = "stays" if len(flat) == 1 else "stay"
        names = " and ".join(flat)
        text += f" But {names} {stay} flat" if moved else f"{names.capitalize()} {stay} flat"
        text += ": the profiled phases do not explain it." if "verify" in flat else "."
    return text


def _implied(first: Window, lowest: Window, m: Measures) -> str:
    """The cycles that the windows' speeds imply, beside the phases that are said to be in them."""
    if m.phases_ms is None or m.verify_ms is None or first.accept_length is None or lowest.accept_length is None:
        return ""
    ends = [1e3 * m.running * (w.accept_length or 1.0) / w.tok_s for w in (first, lowest)]
    text = f" Accept length ÷ throughput is a cycle of {ends[0]:.1f} ms there and {ends[1]:.1f} ms at the lowest"
    text += f"; the phases add up to {m.phases_ms:.1f}."
    if ends[0] < 0.95 * m.verify_ms:
        text += " The first is shorter than the verify that is part of it, so that window cannot be a steady speed."
    return text


def _changes(series: Sequence[Window], phases: Sequence[Phases]) -> dict[str, float]:
    """How accept length and verify moved from their first to their last quarter, as a part of the first."""
    found: dict[str, float] = {}
    lengths = [w.accept_length for w in series if w.accept_length is not None]
    for name, values in (("accept length", lengths), ("verify", [p.verify_ms for p in phases if p.verify_ms])):
        if len(values) >= MIN_WINDOWS // 2:
            early, late = _ends(values)
            found[name] = median(late) / median(early) - 1.0
    return found


def _ends(values: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """The first and the last quarter; of few, as many as an interval takes, or half."""
    size = min(max(LEAST, len(values) // 4), len(values) // 2)
    return values[:size], values[-size:]
