"""Whole outputs kept in tests/data. `OUTPACE_GOLDEN=write pytest tests/cli/test_doctor.py` writes them anew: read the
difference before it is committed."""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(__file__).parent.parent / "data"


def check(name: str, text: str) -> None:
    """That a text is the one that was kept."""
    path = DATA / name
    if os.environ.get("OUTPACE_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
