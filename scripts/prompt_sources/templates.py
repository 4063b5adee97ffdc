"""Reads the template files: `[section]` lines, one entry a line, `\\n` for a line break, `#` lines are comments."""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "templates"

Sections = dict[str, tuple[str, ...]]


@cache
def read(name: str) -> Sections:
    """The sections of `templates/NAME.txt`, in order."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            current = sections.setdefault(line[1:-1], [])
        elif line and not line.startswith("#"):
            current.append(line.replace("\\n", "\n"))
    return {section: tuple(entries) for section, entries in sections.items()}
