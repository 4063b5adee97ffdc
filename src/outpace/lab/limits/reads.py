"""What a whole forward reads and multiplies: the sum of its parts, and one row of the embedding table a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outpace.lab.limits.parts import Least, Part, drafter_parts, fusion_part, target_parts
from outpace.lab.limits.rates import Rates
from outpace.models.arch import TargetConfig
from outpace.models.packed import Packing
from outpace.models.wiring import DrafterWiring


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """One forward of a target, or one step of a drafter. Figures are those of `Part`, summed."""

    parts: Mapping[str, Part]
    embedding_row: int = 0
    """Bytes read once a token."""

    @property
    def weights(self) -> int:
        return sum(part.weights for part in self.parts.values())

    @property
    def expert(self) -> int:
        return sum(part.expert for part in self.parts.values())

    @property
    def kv_per_token(self) -> int:
        return sum(part.kv_per_token for part in self.parts.values())

    @property
    def flops_per_token(self) -> int:
        return sum(part.flops_per_token for part in self.parts.values())

    @property
    def flops_per_pair(self) -> int:
        return sum(part.flops_per_pair for part in self.parts.values())

    def least(self, num_rows: int, tokens: int, context: int) -> Least:
        """Of a forward over `num_rows` rows with `tokens` new tokens and `context` older ones each."""
        found = [part.least(num_rows, tokens, context) for part in self.parts.values()]
        rows = num_rows * tokens * self.embedding_row
        return Least(sum(each.num_bytes for each in found) + rows, sum(each.flops for each in found))

    def num_bytes(self, num_rows: int, tokens: int, context: int) -> int:
        return round(self.least(num_rows, tokens, context).num_bytes)

    def prefill_flops(self, tokens: int, behind: int = 0) -> int:
        """Of so many tokens of a prompt behind known ones. Each sees those before it and itself; the head sees only the
        last."""
        head = self.parts["head"].flops_per_token
        pairs = tokens * (tokens + 1) // 2 + tokens * behind
        return tokens * (self.flops_per_token - head) + head + pairs * self.flops_per_pair

    def seconds(self, num_rows: int, tokens: int, context: int, rates: Rates) -> float:
        """The least that this forward can take."""
        return self.least(num_rows, tokens, context).seconds(rates)


def target_reads(config: TargetConfig, itemsize: int, packing: Packing | None = None) -> Reads:
    """One forward of the target."""
    return Reads(parts=target_parts(config, itemsize, packing), embedding_row=itemsize * config.hidden_size)


def drafter_reads(wiring: DrafterWiring, itemsize: int) -> Reads:
    """One draft step."""
    return Reads(parts=drafter_parts(wiring, itemsize), embedding_row=itemsize * wiring.shape.hidden_size)


def fusion_reads(wiring: DrafterWiring, itemsize: int) -> Reads:
    """Fusing the tapped features once a cycle."""
    return Reads(parts={"fusion": fusion_part(wiring, itemsize)})
