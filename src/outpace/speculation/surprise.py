"""Whether a batch accepts far more or fewer drafts than was expected: then its texts have changed.

Each request's own acceptance fades over some eight cycles, which is what it takes to tell one chance from another where
one request drafts. Many say it together in a cycle or two.
"""

from __future__ import annotations

FADING = 0.7
"""Of what cycles before came to, per cycle."""
DEVIATIONS = 3.0
"""More than so many standard deviations is no accident, unless it is a single draft."""


class Surprise:
    """Adds up by how much cycles differ from what was expected, until that is no accident."""

    def __init__(self) -> None:
        self._excess = self._variance = 0.0

    def adds_up(self, excess: float, variance: float) -> bool:
        """Whether it does with one more cycle; then all begins anew.

        Args:
            excess: accepted drafts of all requests, less the expected ones.
            variance: of that, at most.
        """
        self._excess = FADING * self._excess + excess
        self._variance = FADING**2 * self._variance + variance
        if self._excess**2 <= max(1.0, DEVIATIONS**2 * self._variance):
            return False
        self._excess = self._variance = 0.0
        return True
