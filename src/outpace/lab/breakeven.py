"""Does speculation pay? The arithmetic that answers it, on plain numbers: no model, no torch.

A cycle emits `accept length` tokens and takes a draft, a verify and a rest (accepting, committing, the host). A plain
decode step emits one token. So speculation pays when accept length > cycle time / decode step time, which is the
break-even accept length. All times are in seconds, at the same batch and context.
"""

from __future__ import annotations

from dataclasses import dataclass

from outpace.errors import ConfigError


def break_even_accept_length(cycle_s: float, step_s: float) -> float:
    """Tokens a cycle must emit to be as fast as plain decoding.

    Raises:
        ConfigError: a time is not positive.
    """
    if cycle_s <= 0 or step_s <= 0:
        raise ConfigError(f"cycle time is {cycle_s} s and step time {step_s} s; both must be above 0")
    return cycle_s / step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What one cycle costs and brings, beside the plain step that it replaces."""

    accept_length: float
    cycle_s: float
    step_s: float
    draft_s: float
    verify_s: float
    k: int

    @property
    def break_even(self) -> float:
        return break_even_accept_length(self.cycle_s, self.step_s)

    @property
    def speedup(self) -> float:
        """Over plain decoding; below 1 speculation loses."""
        return self.accept_length / self.break_even

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

    def why(self) -> str:
        """One sentence for people."""
        pays = self.accept_length > self.break_even
        return (
            f"Speculation {'pays' if pays else 'does not pay'} because accept length {self.accept_length:.2f} is "
            f"{'above' if pays else 'not above'} break-even {self.break_even:.2f}: verifying {self.k + 1} tokens costs "
            f"{self.verify_steps:.2f} plain steps, drafting {self.k} costs {self.draft_steps:.2f}, "
            f"everything else {self.rest_steps:.2f}."
        )
