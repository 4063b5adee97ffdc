"""What follows from the figures that somebody gave about plain and speculative decoding; nothing here measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outpace.config import MAX_K
from outpace.errors import ConfigError
from outpace.lab.breakeven.balance import MOST_TOKENS, Balance, balance_of_ms, check_figure, round_speeds
from outpace.lab.breakeven.best_k import (
    Choice,
    CostCurve,
    accept_lengths,
    best,
    check_acceptance,
    choices,
    even_acceptance,
)
from outpace.lab.breakeven.given import Figures, check_read
from outpace.lab.breakeven.heat import Heat, by_acceptance_and_verify, by_batch_and_context
from outpace.wording import every_cycle_pays


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What one speed takes: the accept length at today's cycle, the verify at today's accept length."""

    tok_s: float
    accept_length: float
    verify_ms: float
    possible: bool
    """False where k drafts cannot bring so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakevenReport:
    """Everything that follows; `as_dict` is what `outpace breakeven --json` prints."""

    balance: Balance | None
    reaches: Sequence[Reach]
    wish_tok_s: float | None
    choices: Sequence[Choice]
    cost_model: str
    """How the cost of each k was had; empty without choices."""
    heats: Sequence[Heat]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; times in milliseconds."""
        return {
            **({} if self.balance is None else self._balance(self.balance)),
            "wish_tok_s": self.wish_tok_s,
            "speeds": [_reach(reach) for reach in self.reaches],
            "best_k": best(self.choices).k if self.choices else None,
            "by_k": [choice.as_dict() for choice in self.choices],
            "cost_model": self.cost_model or None,
            "heat": [heat.as_dict() for heat in self.heats],
        }

    def _balance(self, balance: Balance) -> dict[str, Any]:
        return {
            "plain_tok_s": round(balance.plain_tok_s, 2),
            "speculative_tok_s": round(balance.tok_s, 2),
            "ratio": round(balance.speedup, 4),
            "pays": balance.speedup > 1.0,
            "accept_length": round(balance.accept_length, 4),
            "break_even_accept_length": round(balance.break_even, 3),
            "every_cycle_pays": every_cycle_pays(balance.break_even),
            "break_even_verify_ms": round(1e3 * balance.verify_s_for(balance.plain_tok_s), 3),
            "decode_ms": round(1e3 * balance.step_s, 4),
            "cycle_ms": round(1e3 * balance.cycle_s, 4),
            "verify_ms": round(1e3 * balance.verify_s, 4),
            "draft_ms": round(1e3 * balance.draft_s, 4),
            "other_ms": round(1e3 * balance.rest_s, 4),
        }


def report(figures: Figures) -> BreakevenReport:
    """The arithmetic.

    Raises:
        ConfigError: a figure is out of range, or what a question needs was not given.
    """
    if figures.acceptance:
        check_acceptance(figures.acceptance)
    balance = _balance(figures)
    check_read(figures, has_cycle=balance is not None)
    found, model = _by_k(figures, balance)
    heats = [] if balance is None else [by_acceptance_and_verify(balance)]
    if figures.costs is not None:
        heats.append(by_batch_and_context(figures.costs, _acceptance(figures)))
    return BreakevenReport(
        balance=balance,
        reaches=[] if balance is None else _reaches(balance, figures.wish_tok_s),
        wish_tok_s=figures.wish_tok_s,
        choices=found,
        cost_model=model,
        heats=heats,
    )


def _balance(figures: Figures) -> Balance | None:
    if figures.decode_ms is None or figures.verify_ms is None:
        if figures.costs is None:
            raise ConfigError("nothing to compute with: give --decode-ms and --verify-ms, or --costs FILE")
        return None
    k = figures.k if figures.k is not None else (len(figures.acceptance) or None)
    accept_length = figures.accept_length
    if accept_length is None:
        if not figures.acceptance:
            raise ConfigError("accept length is unknown: give --accept-length, or --acceptance place by place")
        accept_length = accept_lengths(figures.acceptance[:k])[-1]
    return balance_of_ms(
        decode_ms=figures.decode_ms,
        verify_ms=figures.verify_ms,
        accept_length=accept_length,
        draft_ms=figures.draft_ms,
        other_ms=figures.other_ms,
        k=k,
    )


def _reaches(balance: Balance, wish_tok_s: float | None) -> list[Reach]:
    speeds = {balance.plain_tok_s, *round_speeds(balance.plain_tok_s)}
    if wish_tok_s is not None:
        check_figure("wish-tok-s", wish_tok_s, 0.0, MOST_TOKENS, above=True)
        speeds.add(wish_tok_s)
    return [
        Reach(
            tok_s=speed,
            accept_length=balance.accept_length_for(speed),
            verify_ms=1e3 * balance.verify_s_for(speed),
            possible=balance.k is None or balance.accept_length_for(speed) <= balance.k + 1,
        )
        for speed in sorted(speeds)
    ]


def _by_k(figures: Figures, balance: Balance | None) -> tuple[list[Choice], str]:
    if not figures.acceptance or balance is None:
        return [], ""
    assert balance.k is not None, "an acceptance curve has a length"
    plain_ms, k = 1e3 * balance.step_s, balance.k
    verify, verify_model = _curve(figures.verify_ms_at, k, plain_ms, 1e3 * balance.verify_s, "verify", "a plain step")
    draft, draft_model = _curve(figures.draft_ms_at, k, 0.0, 1e3 * balance.draft_s, "draft", "nothing")
    found = choices(figures.acceptance, verify, draft, other_ms=1e3 * balance.rest_s, plain_ms=plain_ms)
    return found, f"{verify_model}; {draft_model}; everything else {1e3 * balance.rest_s:.2f} ms at every k"


def _curve(
    given: Mapping[int, float] | None, k: int, zero_ms: float, k_ms: float, name: str, zero: str
) -> tuple[CostCurve, str]:
    if given:
        known = ", ".join(f"{ms:g} ms at k {at}" for at, ms in sorted(given.items()))
        return CostCurve({0: zero_ms, **given}), f"{name} as given ({known}), straight lines between"
    if k_ms == 0.0:
        return CostCurve({0: 0.0, MAX_K: 0.0}), f"{name} not given, taken as 0 ms"
    line = f"{name} on a straight line from {zero} ({zero_ms:.2f} ms) at k 0 to {k_ms:.2f} ms at k {k}: an assumption"
    slope = (k_ms - zero_ms) / k
    return CostCurve({at: max(0.0, zero_ms + slope * at) for at in range(MAX_K + 1)}), line


def _acceptance(figures: Figures) -> Sequence[float]:
    if figures.acceptance:
        return figures.acceptance[: figures.k]
    if figures.accept_length is None or not figures.k:
        raise ConfigError("a cost table needs to know how drafts stand: --acceptance, or --accept-length with --k")
    check_figure("accept-length", figures.accept_length, 1.0, figures.k + 1.0)
    return [even_acceptance(figures.accept_length, figures.k)] * figures.k


def _reach(reach: Reach) -> dict[str, Any]:
    return {
        "tok_s": round(reach.tok_s, 2),
        "accept_length": round(reach.accept_length, 3),
        "possible_with_k": reach.possible,
        "verify_ms": round(reach.verify_ms, 3) if reach.verify_ms > 0 else None,
    }
