"""What the demonstration found, as arithmetic on its timings. Nothing here measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from outpace.lab.breakeven.balance import Balance
from outpace.lab.demo.lossless import Verdict
from outpace.lab.intervals.bootstrap import MIN_VALUES
from outpace.lab.intervals.interval import Interval
from outpace.lab.intervals.verdict import Over, in_short, lead, settles, times
from outpace.lab.timing.others import Taken
from outpace.lab.timing.samples import Sample, speed_ratio, total_tok_s
from outpace.wording import every_cycle_pays

UNQUIET = 1.25
"""A spread of rounds above this is no quiet machine's: two rounds of the same tokens differ by a few percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One contender: `kind` is plain, speculative or transformers; a sample and a number of cycles for each prompt."""

    kind: str
    dtype: str
    samples: Sequence[Sample]
    cycles: Sequence[int]

    @property
    def tok_s(self) -> float:
        return total_tok_s(self.samples)

    @property
    def num_rounds(self) -> int:
        """That every prompt was answered in."""
        return min((len(sample.seconds) for sample in self.samples), default=0)

    @property
    def range_tok_s(self) -> tuple[float, float]:
        """Tokens per second over all prompts, each in its slowest round and in its fastest: `tok_s` lies between."""
        rounds = [[sample.rounds([at]) for at in range(self.num_rounds)] for sample in self.samples]
        slowest, fastest = ([end(of_one, key=lambda one: one.tok_s) for of_one in rounds] for end in (min, max))
        return total_tok_s(slowest), total_tok_s(fastest)

    @property
    def cycle_s(self) -> float:
        """Seconds a cycle, or a plain step, over all prompts."""
        num_tokens = sum(sample.tokens[0] for sample in self.samples)
        return num_tokens / self.tok_s / sum(self.cycles) if self.tok_s else 0.0

    @property
    def accept_length(self) -> float:
        return sum(sample.tokens[0] for sample in self.samples) / max(1, sum(self.cycles))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """Everything that was found; `as_dict` is what `outpace demo --json` prints."""

    model: dict[str, Any]
    machine: dict[str, Any]
    prompts: Sequence[str]
    verdict: Verdict
    phases_s: Mapping[str, float]
    """Of a cycle, by the engine's clock: draft, verify, accept."""
    gap_s: float
    """Between a cycle and the next, by the same clock."""
    measured: Sequence[Measured]
    seconds: float
    left_out: Sequence[str] = ()
    """What the time limit cut down."""
    others: Taken | None = None
    """By other programs meanwhile; None where the system does not tell."""

    @property
    def k(self) -> int:
        return int(self.model["engine"]["k"])

    @property
    def speculative(self) -> Measured:
        return self._of("speculative")[0]

    @property
    def plain(self) -> Measured:
        """The fastest plain decoding."""
        return max(self._of("plain"), key=lambda measured: measured.tok_s)

    @property
    def transformers(self) -> Measured | None:
        found = self._of("transformers")
        return found[0] if found else None

    @property
    def speedup(self) -> Interval:
        """Speculative over the fastest plain decoding."""
        return speed_ratio(self.speculative.samples, self.plain.samples)

    @property
    def over(self) -> Over:
        """What the speedup's interval is taken over."""
        return Over(num=len(self.prompts), least=MIN_VALUES, name="prompts", flag="--prompt")

    @property
    def spread(self) -> float | None:
        """How many times as long an answer's slowest round took as its fastest, at the median; None of one."""
        found = [
            max(sample.seconds) / min(sample.seconds)
            for measured in self.measured
            for sample in measured.samples
            if len(sample.seconds) > 1 and min(sample.seconds) > 0.0
        ]
        return median(found) if found else None

    def warnings(self) -> list[str]:
        """Why these figures may not be the machine's, and what was cut down."""
        found = []
        if self.others is not None and self.others.crowded:
            found.append(f"other programs kept {self.others} busy meanwhile")
        if self.spread is not None and self.spread > UNQUIET:
            found.append(
                f"the same answer took {self.spread:.1f} times as long in one round as in another at the median"
            )
        if found:
            found.append("so these are no measurements of this machine: run it again when nothing else does")
        if self.left_out:
            found.append(f"to keep the time limit, {'; '.join(self.left_out)}")
        if self.speculative.num_rounds == 1:
            found.append("there was one round: speeds of single answers were seen once, and are not told")
        return found

    def why(self) -> str:
        """The verdict that the speedup's interval allows, what a cycle costs and brings, and what would settle it."""
        by = f"its speed over the fastest plain decoding's is {times(self.speedup)}"
        verdict = f"{lead(self.speedup, self.over)}: {by}."
        return " ".join(filter(None, (verdict, self.balance.why(), settles(self.speedup, self.over))))

    @property
    def inside_s(self) -> float:
        """Seconds from one cycle to the next, as the engine's clock has them."""
        return sum(self.phases_s.values()) + self.gap_s

    @property
    def balance(self) -> Balance:
        """Cycle and step as the client's clock had them; the cycle's parts are shares of it."""
        cycle_s = self.speculative.cycle_s
        return Balance(
            accept_length=self.speculative.accept_length,
            cycle_s=cycle_s,
            step_s=self.plain.cycle_s,
            draft_s=cycle_s * self.phases_s["draft"] / self.inside_s,
            verify_s=cycle_s * self.phases_s["verify"] / self.inside_s,
            k=self.k,
        )

    @property
    def residual(self) -> float:
        """Part of the client's tok/s that accept length ÷ the cycle time measured from inside does not explain."""
        return 1.0 - self.balance.accept_length / self.inside_s / self.speculative.tok_s

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; times in milliseconds."""
        balance, speedup, theirs = self.balance, self.speedup, self.transformers
        return {
            "plain_tok_s": round(self.plain.tok_s, 2),
            "speculative_tok_s": round(self.speculative.tok_s, 2),
            "speedup": round(speedup.value, 3),
            "speedup_95": None if speedup.bounds is None else [round(bound, 3) for bound in speedup.bounds],
            "accept_length": round(balance.accept_length, 3),
            "break_even_accept_length": round(balance.break_even, 3),
            "every_cycle_pays": every_cycle_pays(balance.break_even),
            "lossless": self.verdict.lossless,
            "equal_up_to_rounding": self.verdict.equal_up_to_rounding,
            "k": self.k,
            "verdict": in_short(speedup),
            "why": self.why(),
            "plain_dtype": self.plain.dtype,
            "dtype": self.model["dtype"],
            "plain_tok_s_by_dtype": {m.dtype: round(m.tok_s, 2) for m in self._of("plain")},
            "transformers_tok_s": None if theirs is None else round(theirs.tok_s, 2),
            "plain_over_transformers": None if theirs is None else self._over(theirs),
            "phases_ms": self._phases_ms(),
            "residual": round(self.residual, 4),
            "losslessness": asdict(self.verdict),
            "prompts": [self._prompt(index) for index in range(len(self.prompts))],
            "seconds": round(self.seconds, 1),
            "rounds": self.speculative.num_rounds,
            "rounds_spread": None if self.spread is None else round(self.spread, 3),
            "others_cores": None if self.others is None else round(self.others.cores, 2),
            "warnings": self.warnings(),
            "model": self.model,
            "machine": self.machine,
        }

    def _of(self, kind: str) -> list[Measured]:
        return [measured for measured in self.measured if measured.kind == kind]

    def _over(self, theirs: Measured) -> float:
        same = next(m for m in self._of("plain") if m.dtype == theirs.dtype)
        return round(speed_ratio(same.samples, theirs.samples).value, 3)

    def _phases_ms(self) -> dict[str, float]:
        seconds = {
            "plain_step": self.plain.cycle_s,
            "cycle": self.inside_s,
            **self.phases_s,
            "gap": self.gap_s,
        }
        return {name: round(1000 * value, 3) for name, value in seconds.items()}

    def _prompt(self, index: int) -> dict[str, Any]:
        plain, speculative = self.plain.samples[index], self.speculative.samples[index]
        cycles, once = self.speculative.cycles[index], len(speculative.seconds) == 1
        return {
            "prompt": self.prompts[index],
            "tokens": speculative.tokens[0],
            "plain_tok_s": None if once else round(plain.tok_s, 2),
            "speculative_tok_s": None if once else round(speculative.tok_s, 2),
            "speedup": None if once or not plain.tok_s else round(speculative.tok_s / plain.tok_s, 3),
            "accept_length": round(speculative.tokens[0] / cycles, 3) if cycles else None,
            "rounds_tok_s": [
                [round(t / s, 2) if s else None for t, s in zip(sample.tokens, sample.seconds, strict=True)]
                for sample in (plain, speculative)
            ],
        }
