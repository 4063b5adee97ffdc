"""Files that the pages for people name are there, under the repository's root or the package's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "outpace"
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "log.md")]
"""The log tells what was there at its time."""


def named(text: str) -> list[str]:
    """Paths of source files: names with a folder before them."""
    return re.findall(r"`((?:\w+/)+\w+\.(?:py|html))", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_file_that_a_page_names_is_there(page: Path) -> None:
    missing = [
        name
        for name in named(page.read_text(encoding="utf-8"))
        if not (ROOT / name).is_file() and not (PACKAGE / name).is_file()
    ]
    assert not missing


def test_names_are_found() -> None:
    assert named("(`server/http/guard.py`), `linear.py`, `a/b.md`, `lab/x.py --flag`") == [
        "server/http/guard.py",
        "lab/x.py",
    ]
