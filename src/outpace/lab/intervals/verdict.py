"""What may be said of a ratio of two speeds: words that follow its interval, and never its value alone.

| the interval | B is | speculation |
|---|---|---|
| lies within the margin around 1 | equivalent | makes no difference |
| lies above 1 | faster | pays |
| lies below 1 | slower | does not pay |
| holds 1, and more than the margin | inconclusive | is too close to tell |
| is missing: too little was measured | inconclusive | has too few rounds, or what they are, to tell |

The margin is the difference that does not matter. What is inconclusive comes with what would settle it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from outpace.lab.intervals.interval import CONFIDENCE, Interval

MARGIN = 0.02
"""Around 1, as a share."""
POWER = 0.8
"""Chance that as many more as are said to be needed do settle it, if the difference is the one that was seen."""
MOST = 10_000
"""More are not worth a promise."""

Kind = Literal["faster", "slower", "equivalent", "inconclusive"]
SPECULATION: dict[Kind, str] = {"faster": "pays", "slower": "does not pay", "equivalent": "makes no difference"}
ESTIMATED: dict[Kind, str] = {"faster": "pay", "slower": "cost speed", "equivalent": "make no difference"}
CLOSE, FEW = "too close to tell", "too few to tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """What an interval was taken over."""

    num: int
    least: int
    """That give one."""
    name: str
    """In the plural: "rounds"."""
    flag: str = ""
    """That asks for more."""


def kind(ratio: Interval, margin: float = MARGIN) -> Kind:
    """Which of the table's rows it is."""
    if ratio.bounds is None:
        return "inconclusive"
    low, high = ratio.bounds
    if 1.0 / (1.0 + margin) <= low and high <= 1.0 + margin:
        return "equivalent"
    return "faster" if low > 1.0 else "slower" if high < 1.0 else "inconclusive"


def more(ratio: Interval, num: int, margin: float = MARGIN) -> int | None:
    """How many beyond `num` would settle it, from how an interval narrows: with the root of their number.

    It is settled by whichever comes first: the interval leaves 1, or fits into the margin. For a chance of `POWER` it
    has to be narrower than the distance, since the next value will lie elsewhere. None where that is over `MOST`, or
    where a speed was 0.
    """
    assert ratio.bounds is not None, "how an interval narrows is seen from one"
    if min(ratio.value, *ratio.bounds) <= 0.0:
        return None
    low, high = map(math.log, ratio.bounds)
    off = abs(math.log(ratio.value))
    normal = NormalDist()
    spare = 1.0 + normal.inv_cdf(POWER) / normal.inv_cdf((1.0 + CONFIDENCE) / 2.0)
    distance = max(off, math.log1p(margin) - off)
    needed = math.ceil(num * (spare * (high - low) / 2.0 / distance) ** 2)
    return None if needed > MOST else max(1, needed - num)


def in_short(ratio: Interval) -> str:
    """A cell of a table, or a value for machines."""
    return SPECULATION.get(kind(ratio)) or (FEW if ratio.bounds is None else CLOSE)


def lead(ratio: Interval, over: Over | None) -> str:
    """The beginning of a sentence on speculation over plain decoding; over None, no number of anything would do."""
    words = SPECULATION.get(kind(ratio))
    if words is not None:
        return f"Speculation {words}"
    if ratio.bounds is not None:
        return f"Whether speculation pays is {CLOSE}"
    if over is None:
        return "Whether speculation pays cannot be told"
    return f"There are too few {over.name} to tell whether speculation pays"


def times(ratio: Interval) -> str:
    """Of two speeds, with the interval."""
    if ratio.bounds is None:
        return f"{ratio.value:.2f}× without an interval"
    return f"{ratio.value:.2f}× ({ratio.bounds[0]:.2f} … {ratio.bounds[1]:.2f})"


def settles(ratio: Interval, over: Over) -> str | None:
    """What would settle it, as a sentence; None where it is settled."""
    flag = f" ({over.flag})" if over.flag else ""
    if ratio.bounds is None:
        return f"An interval takes {over.least} {over.name} or more{flag}; there are {over.num}."
    if kind(ratio) != "inconclusive":
        return None
    needed = more(ratio, over.num)
    if needed is None:
        return f"It would take over {MOST:,} {over.name} to settle it: find out what makes the machine so noisy."
    return f"About {needed:,} more {over.name}{flag} would settle it."


def exact(ratio: float) -> Interval:
    """A ratio as if it were known for sure, which whoever speaks of it calls an estimate."""
    return Interval(value=ratio, bounds=(ratio, ratio))


def by_estimate(ratio: float) -> str:
    """The beginning of a sentence where one of the speeds was put together from what parts cost."""
    return f"Speculation is estimated to {ESTIMATED[kind(exact(ratio))]}"


def by_given_figures(ratio: float) -> str:
    """The beginning of a sentence where somebody else measured, and no interval is known."""
    return f"By the figures that were given, speculation {SPECULATION['faster' if ratio > 1.0 else 'slower']}"
