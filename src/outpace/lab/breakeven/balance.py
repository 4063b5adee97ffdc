"""Does speculation pay? The arithmetic that answers it, on plain numbers: no model, no torch.

A cycle emits `accept length` tokens and takes a draft, a verify and a rest (accepting, committing, the host). A plain
decode step emits one token. So speculation pays when accept length > cycle time / decode step time, which is the
break-even accept length. All times are in seconds, at the same batch and context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from outpace.errors import ConfigError
from outpace.wording import break_even, count_of

MOST_S = 3600.0
"""Longest time that is taken for one step."""
MOST_TOKENS = 1e6
"""Largest accept length, and largest speed that may be wished for."""


def break_even_accept_length(cycle_s: float, step_s: float) -> float:
    """Tokens a cycle must emit to be as fast as plain decoding.

    Raises:
        ConfigError: a time is not positive.
    """
    if not (cycle_s > 0 and step_s > 0):
        raise ConfigError(f"cycle time is {cycle_s} s and step time {step_s} s; both must be above 0")
    return cycle_s / step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What one cycle costs and brings, beside the plain step that it replaces.

    `k` is the number of drafts, None where it is not known. Speeds are those of one stream.
    """

    accept_length: float
    cycle_s: float
    step_s: float
    draft_s: float
    verify_s: float
    k: int | None = None

    @property
    def break_even(self) -> float:
        return break_even_accept_length(self.cycle_s, self.step_s)

    @property
    def speedup(self) -> float:
        """Over plain decoding; below 1 speculation loses."""
        return self.accept_length / self.break_even

    @property
    def plain_tok_s(self) -> float:
        return 1.0 / self.step_s

    @property
    def tok_s(self) -> float:
        return self.accept_length / self.cycle_s

    @property
    def rest_s(self) -> float:
        """What the cycle takes beyond draft and verify."""
        return self.cycle_s - self.draft_s - self.verify_s

    @property
    def verify_steps(self) -> float:
        """Cost of one verify, in plain decode steps."""
        return self.verify_s / self.step_s

    @property
    def draft_steps(self) -> float:
        """Cost of drafting k tokens, in plain decode steps."""
        return self.draft_s / self.step_s

    @property
    def rest_steps(self) -> float:
        """What the cycle takes beyond draft and verify, in plain decode steps."""
        return self.break_even - self.verify_steps - self.draft_steps

    def accept_length_for(self, tok_s: float) -> float:
        """Tokens a cycle of today's cost must emit to reach a speed."""
        return tok_s * self.cycle_s

    def verify_s_for(self, tok_s: float) -> float:
        """Longest verify that reaches a speed at today's accept length; not above 0 where none does."""
        return self.accept_length / tok_s - self.draft_s - self.rest_s

    def why(self) -> str:
        """One sentence for people. Whether it pays is not in it: these are values, and a verdict takes an interval."""
        verifying, drafting = ("verifying", "drafting") if self.k is None else self._work(self.k)
        return (
            f"A cycle brings {self.accept_length:.2f} tokens and breaks even at {break_even(self.break_even)}: "
            f"{verifying} costs {self.verify_steps:.2f} plain steps, {drafting} costs {self.draft_steps:.2f}, "
            f"everything else {self.rest_steps:.2f}."
        )

    def _work(self, k: int) -> tuple[str, str]:
        return f"verifying {count_of(k + 1, 'token')}", f"drafting {k}"


def balance_of_ms(
    *, decode_ms: float, verify_ms: float, accept_length: float, draft_ms: float, other_ms: float, k: int | None
) -> Balance:
    """A balance from figures that somebody measured, in milliseconds.

    Raises:
        ConfigError: a figure is out of its range.
    """
    for name, value, low in (("decode-ms", decode_ms, 0.0), ("verify-ms", verify_ms, 0.0)):
        check_figure(name, value, low, 1e3 * MOST_S, above=True)
    for name, value in (("draft-ms", draft_ms), ("other-ms", other_ms)):
        check_figure(name, value, 0.0, 1e3 * MOST_S)
    check_figure("accept-length", accept_length, 1.0, MOST_TOKENS if k is None else k + 1)
    return Balance(
        accept_length=accept_length,
        cycle_s=(draft_ms + verify_ms + other_ms) / 1e3,
        step_s=decode_ms / 1e3,
        draft_s=draft_ms / 1e3,
        verify_s=verify_ms / 1e3,
        k=k,
    )


def check_figure(name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    """That a number lies in its range; with `above` its lower end does not count.

    Raises:
        ConfigError: it does not; the message says the value and the limit.
    """
    if not low <= value <= high or (above and value == low):
        limits = f"above {low:g}, at most {high:g}" if above else f"in {low:g} … {high:g}"
        raise ConfigError(f"{name} is {value:g}; it must be {limits}")


def round_speeds(plain_tok_s: float) -> list[float]:
    """A few round speeds above plain decoding, up to two and a half times it."""
    power = 10.0 ** math.floor(math.log10(plain_tok_s / 2.0))
    step = max(part * power for part in (1.0, 2.0, 2.5, 5.0) if part * power <= plain_tok_s / 2.0)
    first, last = math.floor(plain_tok_s / step) + 1, math.floor(2.5 * plain_tok_s / step)
    return [round(step * number, 6) for number in range(first, last + 1)]
