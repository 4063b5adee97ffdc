"""How many experts a cycle of a mixture touches, and what one more of them costs.

A token goes through C of E experts in each of L layers, and a forward reads the weights of those that any of its tokens
chose: C·L at least, and for n tokens that share by chance alone L·E·(1 - (1 - C/E)^n). Text shares more. On a rank of
Kimi-K2.5 (C 8, E 384, an expert 3.1 MB, all else 68 MB a layer) one token reads 93 MB a layer; three that share by
chance touch 23.5 experts and read 141 MB, 1.52 times as much, and three that route alike read 93 MB again. So a cost
that was measured with tokens of one kind misleads about the other kind by up to a half, for every k at once, while a
cycle that runs corrects its own k alone. What is touched beyond C·L, as a part of what chance gives, is one number for
all k's and batches: every cycle teaches it, and it moves all entries of the cost table.
"""

from __future__ import annotations

from typing import Any

FOLLOWING = 0.05
"""How far a cycle moves what is known of sharing; the first ones move it more, to their mean."""
MOST_EXCESS = 1.5
"""Of what chance gives; routing that avoids sharing goes beyond 1."""


class Experts:
    """What is known of a mixture's routing.

    Args:
        num_layers: L, those that are mixtures.
        num_experts: E, of a layer.
        num_chosen: C, of a token.
        seconds_each: what one more expert of one layer adds to a cycle; 0 until it is measured.
    """

    def __init__(self, num_layers: int, num_experts: int, num_chosen: int, seconds_each: float = 0.0) -> None:
        self.num_layers, self.num_experts, self.num_chosen = num_layers, num_experts, num_chosen
        self.seconds_each = seconds_each
        self.excess = 1.0
        """What tokens touch beyond the experts of one, as a part of what chance gives."""
        self.last: int | None = None
        """Experts that the last cycle touched, over all layers."""
        self._num_seen = 0

    @property
    def least(self) -> int:
        """Those of one token."""
        return self.num_layers * self.num_chosen

    def by_chance(self, num_tokens: int) -> float:
        """Those of so many tokens that share by chance alone."""
        missed = (1.0 - self.num_chosen / self.num_experts) ** num_tokens
        return self.num_layers * self.num_experts * (1.0 - missed)

    def expected(self, num_tokens: int) -> float:
        """Those of so many tokens of the text that is served."""
        return self.least + (self.by_chance(num_tokens) - self.least) * self.excess

    def learn(self, num_tokens: int, touched: int) -> None:
        """What a cycle touched, over all layers."""
        self.last = touched
        room = self.by_chance(num_tokens) - self.least
        if room < 0.5:
            return
        self._num_seen += 1
        seen = min(max(0.0, (touched - self.least) / room), MOST_EXCESS)
        self.excess += max(FOLLOWING, 1.0 / self._num_seen) * (seen - self.excess)

    def describe(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "layers": self.num_layers,
            "experts": self.num_experts,
            "a_token": self.num_chosen,
            "touched_last": self.last,
            "excess_over_chance": round(self.excess, 4),
            "us_each": round(1e6 * self.seconds_each, 4),
        }
