"""What to change, in order of the speed that it would come to, each with its arithmetic.

A cycle is taken as draft + verify + other phases + what is unexplained, and only what an advice changes is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outpace.config import MAX_K
from outpace.lab.breakeven.balance import Balance
from outpace.lab.breakeven.best_k import accept_lengths, even_acceptance
from outpace.lab.doctor.case import Case, Measures
from outpace.lab.doctor.finding import Advice, Confidence, Figure
from outpace.lab.intervals.verdict import kind

NEAR_LIMIT = 1.15
"""Plain steps that a verify may cost before bringing it to its limit is worth a word."""
DENSE_STEPS, EXPERT_STEPS = 1.0, 1.5
"""A verify's limit in plain steps: of a dense model, which moves the same weights; and, as an example, of a mixture of
experts, whose few tokens move more experts than one does."""
DRAFT_SHARE = 0.25
"""A draft that takes more of a cycle than this is worth making cheaper."""
WORTH = 0.02
"""Gains below this part of today's speed are not shown."""


@dataclass(frozen=True, slots=True)
class _Cycle:
    """Today's cycle in milliseconds, and what it brings."""

    verify: float
    draft: float
    rest: float
    length: float
    rows: int
    now: float
    """Tokens a second of the batch."""
    plain: float

    def tok_s(self, length: float, cycle_ms: float) -> float:
        return 1e3 * self.rows * length / cycle_ms


def advices(case: Case, m: Measures) -> list[Advice]:
    """Fastest first; empty where plain decoding or the speed itself was not measured."""
    if not case.subject.speculative or m.speed is None or m.plain is None:
        return []
    assert m.over_plain is not None, "both speeds are known"
    slower = not m.contradicted if m.plain.estimated else kind(m.over_plain) == "slower"
    found = [_off(m.speed.value, m.plain)] if slower else []
    balance = m.balance
    if balance is not None and m.phases_ms is not None and m.cycle_ms is not None:
        cycle = _cycle(balance, m.speed.value, m.plain.value, m.running)
        found += [*_verify(cycle, m), *_draft(cycle), *_smaller_k(case, cycle), *_unexplained(cycle, m)]
    worth = [each for each in found if each.over_now > 1.0 + WORTH]
    return sorted(worth, key=lambda each: -each.tok_s)


def _cycle(balance: Balance, now: float, plain: float, rows: int) -> _Cycle:
    verify, draft = 1e3 * balance.verify_s, 1e3 * balance.draft_s
    return _Cycle(verify, draft, 1e3 * balance.rest_s, balance.accept_length, max(1, rows), now, plain)


def _advice(action: str, tok_s: float, cycle: _Cycle, arithmetic: str, confidence: Confidence) -> Advice:
    return Advice(
        action=action,
        tok_s=tok_s,
        over_now=tok_s / cycle.now,
        over_plain=tok_s / cycle.plain,
        arithmetic=arithmetic,
        confidence=confidence,
    )


def _off(now: float, plain: Figure) -> Advice:
    how = "is estimated from the cost table" if plain.estimated else "was measured"
    return Advice(
        action="turn speculation off",
        tok_s=plain.value,
        over_now=plain.value / now,
        over_plain=1.0,
        arithmetic=f"plain decoding {how} at {plain.value:.1f} tok/s",
        confidence="low" if plain.estimated else "high",
    )


def _verify(cycle: _Cycle, m: Measures) -> Iterator[Advice]:
    assert m.step_ms is not None
    if cycle.verify <= NEAR_LIMIT * m.step_ms:
        return
    kinds = ((DENSE_STEPS, "a dense model's limit"), (EXPERT_STEPS, "what a mixture of experts may need"))
    for steps, what in kinds:
        verify = steps * m.step_ms
        total = verify + cycle.draft + cycle.rest
        if verify < cycle.verify:
            yield _advice(
                f"bring verify from {cycle.verify:.1f} ms to {steps:.1f} plain steps ({what})",
                cycle.tok_s(cycle.length, total),
                cycle,
                f"{cycle.length:.2f} tokens ÷ ({verify:.1f} verify + {cycle.draft:.1f} draft + {cycle.rest:.1f} rest) "
                "ms",
                "low",
            )


def _draft(cycle: _Cycle) -> Iterator[Advice]:
    total = cycle.verify + cycle.draft + cycle.rest
    if cycle.draft > DRAFT_SHARE * total:
        yield _advice(
            f"halve the draft's {cycle.draft:.1f} ms (a graph for it, a smaller drafter)",
            cycle.tok_s(cycle.length, total - cycle.draft / 2.0),
            cycle,
            f"{cycle.length:.2f} tokens ÷ ({cycle.verify:.1f} verify + {cycle.draft / 2.0:.1f} draft + "
            f"{cycle.rest:.1f} rest) ms",
            "low",
        )


def _smaller_k(case: Case, cycle: _Cycle) -> Iterator[Advice]:
    """The best smaller k, if verify lies on a straight line between a plain step and today's verify."""
    most = case.subject.max_accept_length
    if most is None or not 3 <= most <= MAX_K + 1 or not 1.0 < cycle.length <= most:
        return
    k, step = most - 1, 1e3 * cycle.rows / cycle.plain
    rates, known = _lengths(case, cycle.length, k)
    options = []
    for fewer in range(1, k):
        verify = step + (cycle.verify - step) * fewer / k if cycle.verify > step else cycle.verify
        draft = cycle.draft * fewer / k
        speed = cycle.tok_s(rates[fewer], verify + draft + cycle.rest)
        options.append((speed, fewer, verify, draft))
    speed, fewer, verify, draft = max(options)
    flat = cycle.tok_s(rates[fewer], cycle.verify + draft + cycle.rest)
    yield _advice(
        f"draft fewer tokens: k {fewer} for k {k}",
        speed,
        cycle,
        f"{rates[fewer]:.2f} tokens ({known}) ÷ ({verify:.1f} verify + {draft:.1f} draft + {cycle.rest:.1f} rest) ms, "
        f"draft and verify on straight lines; {flat:.1f} tok/s if verify gets no cheaper",
        "low",
    )


def _lengths(case: Case, length: float, k: int) -> tuple[list[float], str]:
    """Accept lengths of fewer drafts, from what was printed by position, else from one chance at every place."""
    rates = case.subject.per_position
    if len(rates) >= k:
        return [1.0 + sum(rates[:fewer]) for fewer in range(k + 1)], "by the rates of each position"
    chance = even_acceptance(length, k)
    return accept_lengths([chance] * k), f"if every draft stands with a chance of {chance:.2f}"


def _unexplained(cycle: _Cycle, m: Measures) -> Iterator[Advice]:
    residual = m.unexplained_ms or 0.0
    total = cycle.verify + cycle.draft + cycle.rest
    if residual > 0.0:
        yield _advice(
            f"find the {residual:.1f} ms a cycle that no phase holds",
            cycle.tok_s(cycle.length, total - residual),
            cycle,
            f"{cycle.length:.2f} tokens ÷ {total - residual:.1f} ms, the phases alone",
            "low",
        )
