"""The result of a comparison as one typed value."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from outpace.lab.bench.server_facts import ServerFacts
from outpace.lab.bench.settings import Asking
from outpace.lab.paired.blocks import Block, Role, counted
from outpace.lab.paired.verdict import Verdict

SCHEMA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A contender: as it was named, and what its server said."""

    label: str
    server: ServerFacts
    commit: str | None = None
    """Full id, where it was started here with the code of a commit that was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRecord:
    """Two servers, the blocks that were measured, and the verdict on B."""

    schema: int
    started_at: str
    """UTC, ISO 8601."""
    a: Side
    b: Side
    asking: Asking
    num_blocks: int
    concurrency: int
    measure: str
    verdict: Verdict
    blocks: tuple[Block, ...]
    cut_short: bool = False
    """It was stopped before all blocks were measured."""
    notes: tuple[str, ...]
    client: dict[str, Any]
    """Fingerprint of the machine that asked."""

    def tok_s(self, role: Role) -> float | None:
        """Of a role, over the blocks that count: the geometric mean, as the ratio is of logarithms."""
        speeds = [run.tok_s for block in counted(self.blocks) for run in block.runs if run.role == role]
        return geometric_mean(speeds) if speeds else None

    def rows(self) -> list[dict[str, Any]]:
        """A row for each run."""
        return [
            {
                "block": block.index,
                "role": run.role,
                "tok_s": run.tok_s,
                "tokens": run.tokens,
                "seconds": run.seconds,
                "accept_length": run.accept_length,
                "digest": run.digest,
                "excluded": block.excluded,
            }
            for block in self.blocks
            for run in block.runs
        ]
