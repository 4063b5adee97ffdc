"""How results are written: figures to so many digits, typed values as JSON, rows as CSV, times for people.

It needs neither torch nor a network's packages.
"""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec


def significant(value: float) -> float:
    """To five significant digits. So many decimals would leave a small figure fewer: a fast machine's, say."""
    return float(f"{value:.5g}")


def to_json(record: Any) -> str:
    """On one line."""
    return msgspec.json.encode(record, enc_hook=str).decode()


def about(seconds: float) -> str:
    """A time that is not exact: "about 40 s", "about 3 min"."""
    return f"about {max(1, round(seconds))} s" if seconds < 100.0 else f"about {round(seconds / 60.0)} min"


def to_csv(rows: list[dict[str, Any]]) -> str:
    """A header and a line a row."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
