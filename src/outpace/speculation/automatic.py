"""Automatic control: how many tokens the next cycle drafts, by what cycles cost and how many drafts stand.

It takes the k that emits most tokens per second: expected tokens, from the acceptance of each request in
the batch, over the measured time of such a cycle. k = 0 competes like any other and is plain decoding.

While it decodes plainly nothing is learnt about acceptance, so now and then it probes. Whatever speculation loses
against plain decoding is paid out of a credit that plain decoding earns, a small part of its time: so the loss is
bounded, whatever the drafter, the text or the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from outpace.speculation.acceptance import Acceptance, batch_tokens, expected
from outpace.speculation.control import CycleSeen, Decision, Drafting
from outpace.speculation.cost import CostTable
from outpace.speculation.credit import Credit
from outpace.speculation.plain_checks import PlainChecks
from outpace.speculation.prospect import Prospect
from outpace.speculation.surprise import Surprise

PROBE_CYCLES = 6
"""Of one row; of several fewer, since each of them says something."""
LEAST_PROBE_CYCLES = 2
PROBE_LOSS = 6.0
"""What a probe is thought to lose at most beside its catch-up, in plain steps; one that comes to owe ends early.
So even what looks very dear is tried again: it may have been measured while the machine was busy."""
MOST_OPEN = 16
"""Cycles whose charge waits for a plain step."""
PROBE_EVERY = 100
"""Plain steps between probes, at first and at most: acceptance does not change from one token to the next."""
PROBE_OFTEN = 12
"""The same at least."""
SOONER, LONGER = 0.25, 1.2
"""How many times as long the next probe waits: after drafting that has paid, since acceptance comes and goes, and after
drafting that has not."""
CALM = 400
"""Cycles with drafts after which a disturbed one is nobody's loss; those that come sooner are what drafting takes."""
CATCH_UP = 1.0
"""What a catch-up takes before one was seen, in plain steps."""
MOST_CATCH_UP = 12.0
"""What one may be charged; more is a disturbance."""
MARGIN = 0.02
"""How much better another k must look before it is taken."""
CLEAR = 1.25
"""An advantage over plain decoding that no error of the table explains; a smaller one is checked by plain steps."""
HOPE = 1.1
"""What a k whose cost is taken from other batches may look better than it is: so it is tried, and then known."""
LEFT = 0.25
"""Of what was seen of a request, where its batch surprises."""
REQUEST_HALF_LIFE = 8.0
OVERALL_HALF_LIFE = 256.0


class AutomaticControl:
    """Chooses by cost and acceptance.

    Args:
        costs: measured for every batch that is asked about.
        calibration: how they were measured, to be shown.
    """

    def __init__(self, costs: CostTable, calibration: dict[str, Any] | None = None) -> None:
        self.costs = costs
        self.calibration = calibration
        self.overall = Acceptance(max(costs.ks), OVERALL_HALF_LIFE)
        self._fresh: list[tuple[Acceptance | None, int, int]] = []
        """A request's acceptance, drafts and accepted ones, of cycles that were not taken in yet."""
        self._surprise = Surprise()
        self.decision = Decision(0, "nothing was asked yet")
        self.num_switches = 0
        self._pays = True
        """Some k looks better than plain decoding, and may be taken."""
        self._credit = Credit()
        self._probing = 0
        self._num_plain = 0
        """Plain steps in a row."""
        self._probe_every = float(PROBE_EVERY)
        self._gain = 0.0
        """Of drafting since the last plain step, in seconds; what resuming took is off."""
        self._catch_up = CATCH_UP
        self._plain_checks = PlainChecks()
        self._open: list[CycleSeen] = []
        """Cycles that took longer than expected, and are charged when it is known whether plain steps do, too."""
        self._num_calm = CALM
        """Cycles with drafts since one was disturbed."""
        self._num_recurring = 0
        """Disturbed ones that came soon after another. Each may be charged more than the one before: two at a start are
        compilations, many are what drafting takes."""
        self._unseen = Acceptance(max(costs.ks), REQUEST_HALF_LIFE)

    def start(self) -> Acceptance:
        return Acceptance(max(self.costs.ks), REQUEST_HALF_LIFE)

    def fills_drafter(self) -> bool:
        return self._pays

    def choose(self, batch: Sequence[Drafting]) -> Decision:
        self.take_in()
        drafting = [request for request in batch if request.max_k]
        if drafting and all(request.num_left == 1 for request in drafting):
            return Decision(0, "only last tokens are missing")  # which says nothing of drafting, and is not kept
        decision = self._weigh(self._ahead(batch, drafting)) if drafting else Decision(0, "no request drafts")
        self.num_switches += (decision.k > 0) != (self.decision.k > 0)
        self.decision = decision
        return decision

    def _ahead(self, batch: Sequence[Drafting], drafting: Sequence[Drafting]) -> Prospect:
        limits = [min(request.max_k, request.num_left - 1) for request in drafting]
        seen = [(request.acceptance or self._unseen).seen_R for request in drafting]
        tokens = batch_tokens(seen, limits, self.overall.rates())
        num_rows, context = len(batch), sum(request.num_cached for request in batch)
        most = max(request.max_k for request in drafting)
        seconds = self.costs.by_k(num_rows, context)
        num_plain = num_rows - len(drafting)
        ks = [k for k in self.costs.ks if k <= most]
        return Prospect(num_rows, context, {k: num_plain + tokens[k] for k in ks}, {k: seconds[k] for k in ks})

    def _weigh(self, ahead: Prospect) -> Decision:
        loose = self.costs.loose(ahead.num_rows)
        speed = {k: ahead.speed(k) * (HOPE if k and k in loose else 1.0) for k in ahead.tokens}
        best = max(speed, key=speed.__getitem__)
        kept = self.decision.k
        if kept in speed and speed[best] < speed[kept] * (1.0 + MARGIN):
            best = kept
        drafts = max((k for k in speed if k), key=speed.__getitem__, default=0)
        owing = 0.0 if self._num_plain else 2.0 * self._catch_up * ahead.seconds[0]  # it has to earn what resuming took
        may = self._credit.covers(-owing)
        self._pays = best > 0 and may
        bucket, clear = self.costs.bucket(ahead.num_rows), speed[best] >= CLEAR * speed[0]
        is_new = 0 in loose and self._plain_checks.waits(bucket)
        if best and (is_new or self._plain_checks.due(bucket, clear=clear)):
            return _decided(0, "checking what a plain step takes: ", ahead, best)
        if self._probing and drafts:
            return _decided(best or drafts, "probing: ", ahead, best or drafts)
        num_cycles = max(LEAST_PROBE_CYCLES, -(-PROBE_CYCLES // ahead.num_rows))
        if best == 0 and drafts and self._may_probe(num_cycles * ahead.loss(drafts), ahead.seconds[0]):
            self._probing = num_cycles
            return _decided(drafts, "probing: ", ahead, drafts)
        if best and not may:
            return _decided(0, "it has lost more than it may, though ", ahead, best)
        return _decided(best, "", ahead, best or drafts)

    def _may_probe(self, loss: float, step: float) -> bool:
        """Args: what it is thought to lose, in plain steps, and the seconds of one."""
        needed = (min(loss, PROBE_LOSS) + self._catch_up) * step
        return self._num_plain >= self._probe_every and self._credit.covers(needed)

    def learn(self, request: Drafting, num_drafts: int, num_accepted: int) -> None:
        self._fresh.append((request.acceptance, num_drafts, num_accepted))

    def take_in(self) -> None:
        """What was learnt since the last choice. If it is a surprise, what was known before counts little."""
        if not self._fresh:
            return
        requests, drafts, accepted = zip(*self._fresh, strict=True)
        self._fresh = []
        own = [acceptance for acceptance in requests if acceptance is not None]
        seen = [(acceptance or self._unseen).seen_R for acceptance in requests]
        expected_B = expected(seen, drafts, self.overall.rates())
        variance = float((expected_B * (drafts - expected_B)).sum())
        if self._surprise.adds_up(sum(accepted) - float(expected_B.sum()), variance):
            self.overall.fade(1.0 / len(requests))
            for acceptance in own:
                acceptance.fade(LEFT)
        for acceptance, num_drafts, num_accepted in zip(requests, drafts, accepted, strict=True):
            if acceptance is not None:
                acceptance.add(num_drafts, num_accepted)
        self.overall.add_all(list(zip(drafts, accepted, strict=True)))

    def observe(self, seen: CycleSeen) -> None:
        observed = self.costs.observe(seen.num_rows, seen.k, seen.context, seen.seconds, seen.touched)
        shifted = observed == "shifted"
        strange = shifted or (seen.k > 0 and self.costs.contradicts(seen.num_rows, seen.k, seen.context))
        self._plain_checks.seen(self.costs.bucket(seen.num_rows), seen.k, shifted=strange)
        if seen.k:
            self._probing = max(0, self._probing - 1)
            self._num_plain = 0
        elif observed != "disturbed":
            self._num_plain += 1
        if observed == "disturbed":
            if not self._recurs(seen):
                return  # a paused machine or a compilation is nobody's loss
            dearest = (1.0 + 2 * PROBE_LOSS * self._num_recurring) * self.costs.seconds(seen.num_rows, 0, seen.context)
            seen = replace(seen, seconds=min(seen.seconds, dearest))
        self._num_calm += seen.k > 0
        self._open.append(seen)
        if observed == "usual" or (shifted and not seen.k) or len(self._open) >= MOST_OPEN:
            self._settle()

    def _recurs(self, disturbed: CycleSeen) -> bool:
        """Whether it is one of many with drafts; of plain steps that would be no reason to draft."""
        if not disturbed.k:
            return False
        self._num_recurring = self._num_recurring + 1 if self._num_calm < CALM else 0
        self._num_calm = 0
        return self._num_recurring > 0

    def _settle(self) -> None:
        """Charges cycles against what a plain step is known to take by now."""
        for seen in self._open:
            step = self.costs.seconds(seen.num_rows, 0, seen.context)
            if not seen.k:
                self._credit.earn(seen.seconds, step)
                self._judge_probe()
                continue
            gain = step * seen.num_emitted / seen.num_rows - seen.seconds
            self._credit.add(gain, step)
            self._gain += gain
            if not self._credit.covers(0.0):
                self._probing = 0
        self._open = []

    def _judge_probe(self) -> None:
        """After drafting has ended."""
        if self._gain:
            factor = SOONER if self._gain > 0.0 else LONGER
            self._probe_every = max(PROBE_OFTEN, min(self._probe_every * factor, PROBE_EVERY))
            self._gain = 0.0

    def pay(self, num_rows: int, context: int, seconds: float) -> None:
        step = self.costs.seconds(num_rows, 0, context)
        charged = min(seconds, MOST_CATCH_UP * step)
        self._catch_up += 0.25 * (charged / step - self._catch_up)
        self._credit.add(-charged, step)
        self._gain -= charged

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "auto",
            "k": self.decision.k,
            "why": self.decision.why,
            "weighed": None if self.decision.weighed is None else self.decision.weighed.as_dict(),
            "switches": self.num_switches,
            "catch_up_steps": round(self._catch_up, 2),
            "acceptance": [round(rate, 4) for rate in self.overall.rates()],
            "calibration": self.calibration,
            "experts": None if self.costs.experts is None else self.costs.experts.describe(),
            "costs": self.costs.as_dict(),
        }


def _decided(k: int, words: str, ahead: Prospect, about: int) -> Decision:
    """A decision for `k` whose reason is what another k, or the same, would bring."""
    return Decision(k, words + ahead.reason(about), ahead.weighed(about))
