"""From blocks to a verdict: faster, slower, equivalent within a margin, or inconclusive and what would settle it.

The margin is the difference that does not matter. Equivalence is claimed when the whole interval of the ratio lies
within it, which is also so where a small difference is certain; faster or slower when the interval excludes 1. With no
difference, faster or slower is said in at most 5% of comparisons.

The interval is that of signed ranks: the two sides of a block ran under the same noise, so differences of their logs
lie evenly about their centre, and the narrowest interval takes the fewest blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from outpace.lab.intervals.interval import CONFIDENCE
from outpace.lab.intervals.signed_ranks import Location, fewest, locate
from outpace.lab.paired.blocks import Block, counted
from outpace.wording import count_of

CONTROL_CONFIDENCE = 0.99
"""Of the control's interval: a sound machine fails its control once in a hundred comparisons."""
POWER = 0.8
"""Chance that so many blocks as are said to be needed do settle it, if the difference is the one that was seen."""
MIN_BLOCKS = fewest(CONTROL_CONFIDENCE)
MOST_BLOCKS = 10_000
"""More are not worth a promise."""

Kind = Literal["faster", "slower", "equivalent", "inconclusive"]


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
    reasons, kind, more = list(doubts), _kind(found, margin), None
    if control.low > 0.0 or control.high < 0.0:
        reasons.append(
            f"the control failed: A differs from itself by {math.expm1(control.center):+.1%}, so this way of measuring "
            "is biased, and more blocks will not mend it"
        )
    elif len(good) < MIN_BLOCKS:
        reasons.append(f"{count_of(len(good), 'block')} to go by; a verdict takes {MIN_BLOCKS}")
        more = MIN_BLOCKS - len(good)
    elif kind == "inconclusive":
        more = _more(found, margin)
        reasons.append(_unsettled(found, margin, more))
    return _verdict(
        "inconclusive" if reasons else kind,
        _ratio(found, CONFIDENCE),
        _ratio(control, CONTROL_CONFIDENCE),
        margin,
        len(good),
        num_excluded,
        more if not doubts else None,
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


def _kind(found: Location, margin: float) -> Kind:
    edge = math.log1p(margin)
    if -edge <= found.low and found.high <= edge:
        return "equivalent"
    if found.low > 0.0:
        return "faster"
    return "slower" if found.high < 0.0 else "inconclusive"


def _more(found: Location, margin: float) -> int | None:
    """Blocks beyond those that there are, from how the interval narrows: with the root of their number.

    It is settled by whichever comes first: the interval leaves 1, or fits into the margin. For a chance of `POWER` it
    has to be narrower than the distance, since the next centre will lie elsewhere.
    """
    distance = max(abs(found.center), math.log1p(margin) - abs(found.center))
    normal = NormalDist()
    spare = 1.0 + normal.inv_cdf(POWER) / normal.inv_cdf((1.0 + CONFIDENCE) / 2.0)
    needed = math.ceil(found.num * (spare * found.half_width / distance) ** 2)
    return None if needed > MOST_BLOCKS else max(1, needed - found.num)


def _unsettled(found: Location, margin: float, more: int | None) -> str:
    low, high = math.exp(found.low), math.exp(found.high)
    holds = f"the ratio lies in {low:.3f} … {high:.3f}, which holds 1 and also more than {margin:.1%} off it"
    if more is None:
        return f"{holds}; it would take over {MOST_BLOCKS:,} blocks to settle: find out what makes the machine so noisy"
    return f"{holds}; about {count_of(more, 'more block')} would settle it"


def _ratio(found: Location, confidence: float) -> Ratio:
    finite = math.isfinite(found.low)
    return Ratio(
        value=math.exp(found.center),
        low=math.exp(found.low) if finite else None,
        high=math.exp(found.high) if finite else None,
        confidence=confidence,
    )
