"""The figures that somebody gave, and whether each of them has a use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outpace.errors import ConfigError
from outpace.lab.breakeven.best_k import accept_lengths
from outpace.lab.breakeven.cost_rows import CostRows
from outpace.wording import count_of

SAME = 0.05
"""As a share: what an accept length and the acceptance at each place may differ by, since both are rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was given; milliseconds, and None or empty where nothing was."""

    decode_ms: float | None = None
    verify_ms: float | None = None
    draft_ms: float = 0.0
    other_ms: float = 0.0
    accept_length: float | None = None
    k: int | None = None
    wish_tok_s: float | None = None
    acceptance: Sequence[float] = ()
    verify_ms_at: Mapping[int, float] | None = None
    draft_ms_at: Mapping[int, float] | None = None
    costs: CostRows | None = None


def check_read(figures: Figures, *, has_cycle: bool) -> None:
    """That nothing was given in vain, and acceptance not twice with two meanings.

    Raises:
        ConfigError: names what would not be read, and what it lacks.
    """
    by_k = {"--verify-ms-at": figures.verify_ms_at, "--draft-ms-at": figures.draft_ms_at}
    of_a_cycle = {
        "--decode-ms": figures.decode_ms,
        "--verify-ms": figures.verify_ms,
        "--draft-ms": figures.draft_ms,
        "--other-ms": figures.other_ms,
        "--wish-tok-s": figures.wish_tok_s,
        **by_k,
    }
    for name, given in of_a_cycle.items():
        if given and not has_cycle:
            raise ConfigError(
                f"{name} is of a cycle, which takes --decode-ms and --verify-ms: give both, or leave it out"
            )
    for name, given in by_k.items():
        if given and not figures.acceptance:
            raise ConfigError(f"{name} is for choosing k, which takes --acceptance: give it, or leave {name} out")
    _check_acceptances(figures)


def _check_acceptances(figures: Figures) -> None:
    if not figures.acceptance:
        return
    num = len(figures.acceptance)
    if figures.k is not None and figures.k > num:
        raise ConfigError(f"k is {figures.k}, but --acceptance has {count_of(num, 'place')}: give one for each draft")
    by_place = accept_lengths(figures.acceptance[: figures.k])[-1]
    if figures.accept_length is not None and abs(figures.accept_length / by_place - 1.0) > SAME:
        raise ConfigError(
            f"accept-length is {figures.accept_length:g}, but --acceptance gives {by_place:.2f} at k "
            f"{figures.k or num}: leave one of them out"
        )
