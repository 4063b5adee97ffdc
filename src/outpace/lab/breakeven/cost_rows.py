"""A cost table as an engine describes it, read from JSON, and where speculation would pay by batch and context.

Rows are those of `control.describe()["costs"]`: a cycle of `k` drafts for `bucket` rows takes `base_ms`, and
`us_per_1k_context` more for each 1,000 tokens of context of all rows together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outpace.config import MAX_K
from outpace.errors import ConfigError
from outpace.lab.breakeven.best_k import Choice, accept_lengths

CONTEXTS = (256, 1024, 4096, 16384, 65536)
"""Tokens of each row that the map shows."""
FIELDS = ("bucket", "k", "base_ms", "us_per_1k_context")


@dataclass(frozen=True, slots=True)
class CostRows:
    """Milliseconds of a cycle: {bucket: {k: (base, per 1,000 tokens)}}."""

    rows: dict[int, dict[int, tuple[float, float]]]

    @property
    def buckets(self) -> list[int]:
        return sorted(self.rows)

    def choices(self, bucket: int, context: int, acceptance: Sequence[float]) -> list[Choice]:
        """Every k that the table and the acceptance know, for `bucket` rows of `context` tokens each."""
        row = self.rows[bucket]
        cycle_ms = {k: base + slope * bucket * context / 1e3 for k, (base, slope) in row.items()}
        return [
            Choice(k=k, accept_length=tokens, cycle_ms=cycle_ms[k], plain_ms=cycle_ms[0])
            for k, tokens in enumerate(accept_lengths(acceptance))
            if k in cycle_ms
        ]


def read_cost_rows(text: str, name: str) -> CostRows:
    """The rows in a JSON text: a list of them, or an object that holds it as `costs`, at any depth.

    Args:
        text: of the file.
        name: of the file, for messages.

    Raises:
        ConfigError: it is no such table; the message says the row.
    """
    try:
        rows = _find(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not JSON: {error}") from error
    if rows is None:
        raise ConfigError(f'{name} holds no cost table; give a list of rows, or an object with "costs"')
    table: dict[int, dict[int, tuple[float, float]]] = {}
    for place, row in enumerate(rows, start=1):
        bucket, k, base_ms, slope_us = _numbers(row, f"{name}, row {place}")
        table.setdefault(int(bucket), {})[int(k)] = (base_ms, slope_us / 1e3)
    for bucket_rows, by_k in table.items():
        if 0 not in by_k:
            raise ConfigError(f"{name} has no row of k 0 for bucket {bucket_rows}; a ratio needs the plain step")
    return CostRows(table)


def _find(data: Any) -> list[Any] | None:
    if isinstance(data, list):
        return data or None
    if not isinstance(data, dict):
        return None
    if "costs" in data:
        return _find(data["costs"])
    return next((rows for value in data.values() if isinstance(value, dict) and (rows := _find(value))), None)


def _numbers(row: Any, where: str) -> tuple[float, float, float, float]:
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is {row!r:.60}; it must be an object with {', '.join(FIELDS)}")
    limits = ((1, 1 << 20), (0, MAX_K), (1e-6, 1e9), (0, 1e9))
    values = []
    for field, (low, high) in zip(FIELDS, limits, strict=True):
        value = row.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ConfigError(f"{where}: {field} is {value!r:.40}; it must be a number in {low:g} … {high:g}")
        values.append(float(value))
    bucket, k, base_ms, slope = values
    return bucket, k, base_ms, slope
