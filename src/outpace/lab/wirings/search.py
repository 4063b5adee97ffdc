"""Tries the wirings that go wrong in practice, one kind after the other, and keeps what measures clearly better."""

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
    """Goes through draft ids, taps, shift and norms twice, since one wrong kind hides another.

    Args:
        scorer: of this drafter.
        drafter: as it is wired.
    """
    given = best = scorer.score(Variant.of(drafter))
    for _ in range(2):
        before = best
        for kind, options in (("draft ids", _ids), ("taps", _taps), ("shift", _shifts), ("norms", _norms)):
            progress(f"trying wirings: {kind}")
            best = _better(scorer, best, options(best.variant, drafter, scorer))
        if best is before:
            break
    if best.acceptance < POOR:
        for place in range(len(best.variant.boundaries)):
            progress(f"trying wirings: tap {place + 1} at every layer")
            best = _better(scorer, best, _anywhere(best.variant, place, scorer))
    tried = sorted(scorer.scores.values(), key=lambda score: -score.acceptance)
    return Found(given=given, best=best, tried=tuple(tried))


def _better(scorer: Scorer, best: Score, options: Iterator[Variant]) -> Score:
    """The best of them if it is clearly better than the best so far."""
    scores = [scorer.score(variant) for variant in options]
    top = max(scores, key=lambda score: score.acceptance, default=best)
    return top if top.z_over(best) >= WORTH_Z else best


def _ids(variant: Variant, drafter: Drafter, scorer: Scorer) -> Iterator[Variant]:
    for name in readings(drafter):
        yield replace(variant, ids=name)


def _taps(variant: Variant, drafter: Drafter, scorer: Scorer) -> Iterator[Variant]:
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


def _shifts(variant: Variant, drafter: Drafter, scorer: Scorer) -> Iterator[Variant]:
    for shift in (0, 2):
        yield replace(variant, shift=shift)


def _norms(variant: Variant, drafter: Drafter, scorer: Scorer) -> Iterator[Variant]:
    yield replace(variant, norm_before_residual=not variant.norm_before_residual)
    if drafter.wiring.has_fc:
        for norm in FUSION_NORMS:
            yield replace(variant, fusion_norm=norm)


def _anywhere(variant: Variant, place: int, scorer: Scorer) -> Iterator[Variant]:
    for boundary in range(scorer.num_layers + 1):
        if boundary not in variant.boundaries:
            yield replace(variant, boundaries=(*variant.boundaries[:place], boundary, *variant.boundaries[place + 1 :]))
