"""Tries the wirings that go wrong in practice, and keeps what measures clearly better."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from outpace.lab.wirings.score import WORTH_Z, Score, Scorer
from outpace.lab.wirings.variant import Variant, readings
from outpace.models.drafter import Drafter
from outpace.models.drafters.taps import default_boundaries
from outpace.models.wiring import FusionNorm

POOR = 0.4
"""First-draft acceptance below which every single tap is tried at every layer."""
MOST_CHANGES = 5
SHIFTS = (0, 1, 2)
FUSION_NORMS: tuple[FusionNorm, ...] = ("none", "whole", "per_tap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What measured best, what the given wiring came to, and all that was tried."""

    given: Score
    best: Score
    tried: tuple[Score, ...]
    """Best first."""

    @property
    def differs(self) -> bool:
        return self.best.variant != self.given.variant


def search(scorer: Scorer, drafter: Drafter, progress: Callable[[str], None] = lambda text: None) -> Found:
    """Takes the one change that helps most, then the next, as long as one clearly does: one wrong part hides another.

    Args:
        scorer: of this drafter.
        drafter: as it is wired.
    """
    given = best = scorer.score(Variant.of(drafter))
    for turn in range(MOST_CHANGES):
        progress(f"trying wirings: change {turn + 1}")
        before = best
        best = _better(scorer, best, _changes(best.variant, drafter, scorer))
        if best is before:
            break
    if best.acceptance < POOR:
        for place in range(len(best.variant.boundaries)):
            progress(f"trying wirings: tap {place + 1} at every layer")
            best = _better(scorer, best, _anywhere(best.variant, place, scorer))
    tried = sorted(scorer.scores.values(), key=lambda score: -score.acceptance)
    return Found(given=given, best=best, tried=tuple(tried))


def _changes(variant: Variant, drafter: Drafter, scorer: Scorer) -> Iterator[Variant]:
    """Everything that one change leads to."""
    yield from _ids(variant, drafter)
    yield from _taps(variant, scorer)
    yield from (replace(variant, shift=shift) for shift in SHIFTS)
    yield from _norms(variant, drafter)


def _better(scorer: Scorer, best: Score, options: Iterator[Variant]) -> Score:
    """The best of them if it is clearly better than the best so far."""
    scores = [scorer.score(variant) for variant in options]
    top = max(scores, key=lambda score: score.acceptance, default=best)
    return top if top.z_over(best) >= WORTH_Z else best


def _ids(variant: Variant, drafter: Drafter) -> Iterator[Variant]:
    for name in readings(drafter):
        yield replace(variant, ids=name)


def _taps(variant: Variant, scorer: Scorer) -> Iterator[Variant]:
    """EAGLE-3's default, ids that were meant as outputs or as inputs, and the other order."""
    default = default_boundaries(scorer.num_layers)
    for taps in (variant.boundaries, default):
        if len(taps) != len(variant.boundaries):
            continue
        for shifted in (0, 1, -1):
            moved = tuple(boundary + shifted for boundary in taps)
            if min(moved) >= 0 and max(moved) <= scorer.num_layers:
                yield replace(variant, boundaries=moved)
        if len(taps) > 1:
            yield replace(variant, boundaries=taps[::-1])


def _norms(variant: Variant, drafter: Drafter) -> Iterator[Variant]:
    yield replace(variant, norm_before_residual=not variant.norm_before_residual)
    if drafter.wiring.has_fc:
        for norm in FUSION_NORMS:
            yield replace(variant, fusion_norm=norm)


def _anywhere(variant: Variant, place: int, scorer: Scorer) -> Iterator[Variant]:
    for boundary in range(scorer.num_layers + 1):
        if boundary not in variant.boundaries:
            yield replace(variant, boundaries=(*variant.boundaries[:place], boundary, *variant.boundaries[place + 1 :]))
