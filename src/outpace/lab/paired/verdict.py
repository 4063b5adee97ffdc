"""From blocks to a verdict: faster, slower, equivalent within a margin, or inconclusive and what would settle it.

Which it is follows from the ratio's interval as everywhere in the lab (`intervals/verdict.py`), unless the control
failed or something else forbids a conclusion. With no difference, faster or slower is said in at most 5% of cases.

The interval is that of signed ranks: the two sides of a block ran under the same noise, so differences of their logs
lie evenly about their centre, and the narrowest interval takes the fewest blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outpace.lab.intervals.interval import CONFIDENCE, Interval
from outpace.lab.intervals.signed_ranks import Location, fewest, locate
from outpace.lab.intervals.verdict import MOST, Kind, kind, more
from outpace.lab.paired.blocks import Block, counted
from outpace.wording import count_of

CONTROL_CONFIDENCE = 0.99
"""Of the control's interval: a sound machine fails its control once in a hundred comparisons."""
MIN_BLOCKS = fewest(CONTROL_CONFIDENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Of two speeds, with its interval; None where too few blocks count for one."""

    value: float
    low: float | None
    high: float | None
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be said of B."""

    kind: Kind
    ratio: Ratio | None
    """B ÷ A."""
    control: Ratio | None
    """A' ÷ A."""
    margin: float
    num_blocks: int
    """That count."""
    num_excluded: int
    more_blocks: int | None
    """How many more would settle it; None where it is settled, or where more would not help."""
    reasons: tuple[str, ...]
    """Why it is inconclusive."""


def judge(blocks: Sequence[Block], margin: float, doubts: Sequence[str] = ()) -> Verdict:
    """The verdict.

    Args:
        margin: of equivalence, as a share: 0.02 is 2%.
        doubts: what forbids any conclusion, found elsewhere.
    """
    good = counted(blocks)
    num_excluded = len(blocks) - len(good)
    if not good:
        reason = "no block counts: every one was excluded"
        return _verdict("inconclusive", None, None, margin, 0, num_excluded, None, [*doubts, reason])
    found = locate([block.log_ratio("B") for block in good], CONFIDENCE)
    control = locate([block.log_ratio("A'") for block in good], CONTROL_CONFIDENCE)
    ratio, reasons, more_blocks = _interval(found), list(doubts), None
    if control.low > 0.0 or control.high < 0.0:
        reasons.append(
            f"the control failed: A differs from itself by {math.expm1(control.center):+.1%}, so this way of measuring "
            "is biased, and more blocks will not mend it"
        )
    elif len(good) < MIN_BLOCKS:
        reasons.append(f"{count_of(len(good), 'block')} to go by; a verdict takes {MIN_BLOCKS}")
        more_blocks = MIN_BLOCKS - len(good)
    elif kind(ratio, margin) == "inconclusive":
        more_blocks = more(ratio, len(good), margin)
        reasons.append(_unsettled(found, margin, more_blocks))
    return _verdict(
        "inconclusive" if reasons else kind(ratio, margin),
        _ratio(found, CONFIDENCE),
        _ratio(control, CONTROL_CONFIDENCE),
        margin,
        len(good),
        num_excluded,
        more_blocks if not doubts else None,
        reasons,
    )


def _verdict(
    kind: Kind,
    ratio: Ratio | None,
    control: Ratio | None,
    margin: float,
    num_blocks: int,
    num_excluded: int,
    more_blocks: int | None,
    reasons: Sequence[str],
) -> Verdict:
    return Verdict(
        kind=kind,
        ratio=ratio,
        control=control,
        margin=margin,
        num_blocks=num_blocks,
        num_excluded=num_excluded,
        more_blocks=more_blocks,
        reasons=tuple(reasons),
    )


def _unsettled(found: Location, margin: float, more_blocks: int | None) -> str:
    low, high = math.exp(found.low), math.exp(found.high)
    holds = f"the ratio lies in {low:.3f} … {high:.3f}, which holds 1 and also more than {margin:.1%} off it"
    if more_blocks is None:
        return f"{holds}; it would take over {MOST:,} blocks to settle: find out what makes the machine so noisy"
    return f"{holds}; about {count_of(more_blocks, 'more block')} would settle it"


def _interval(found: Location) -> Interval:
    """Of the ratio itself."""
    bounds = (math.exp(found.low), math.exp(found.high)) if math.isfinite(found.low) else None
    return Interval(value=math.exp(found.center), bounds=bounds)


def _ratio(found: Location, confidence: float) -> Ratio:
    ratio = _interval(found)
    low, high = ratio.bounds or (None, None)
    return Ratio(value=ratio.value, low=low, high=high, confidence=confidence)
