from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from outpace.wording import LONGEST_MISTYPED, break_even, count_of, nearest, reason, suggestion

PACKAGE = Path(__file__).parent.parent / "src" / "outpace"
COUNTED = re.compile(
    r"^ (?:KV |prompt |assistant |more )?(?:tokens|rows|threads|cores|answers|prompts|records|requests)\b"
)
"""What there is often one of, and follows its number."""


def test_one_is_no_plural() -> None:
    told = [count_of(number, "KV page") for number in (0, 1, 2, 1113)]
    assert told == ["0 KV pages", "1 KV page", "2 KV pages", "1,113 KV pages"]


def test_a_break_even_up_to_1_is_none() -> None:
    assert [break_even(at) for at in (2.417, 1.001, 1.0, 0.83)] == [
        "2.42",
        "1.00",
        "1.00, so every cycle pays",
        "0.83, so every cycle pays",
    ]


def test_what_was_probably_meant() -> None:
    known = {"temperature", "top_p", "top_k"}
    assert nearest("temprature", known) == "temperature"
    assert [nearest("top_x", known) for _ in range(3)] == ["top_p"] * 3, "of equals it is the same every time"
    assert nearest("nothing", known) is nearest("top_p" * LONGEST_MISTYPED, known) is nearest("a", ()) is None
    assert suggestion("topk", known) == "; did you mean top_k?" and suggestion("nothing", known) == ""


def test_what_there_may_be_one_of_is_counted_by_it() -> None:
    """`{len(tokens)} tokens` says "1 tokens". Limits (constants), decimals and "1 of 2 rows" may stand as they are."""
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        for text in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(text, ast.JoinedStr):
                for value, following in zip(text.values, text.values[1:], strict=False):
                    if not isinstance(value, ast.FormattedValue) or not isinstance(following, ast.Constant):
                        continue
                    if COUNTED.match(str(following.value)) and ast.unparse(value.value).startswith("len("):
                        wrong.append(f"{path.name}:{value.lineno}: {ast.unparse(value.value)}{following.value!r:.40}")
    assert not wrong, wrong


def test_what_the_system_says_is_told_without_number_and_path(tmp_path: Path) -> None:
    """The message around it names the file."""
    with pytest.raises(FileNotFoundError) as missing:
        (tmp_path / "keys.txt").read_text()
    assert reason(missing.value) == "No such file or directory"
    assert reason(ValueError("no JSON")) == "no JSON" and reason(OSError("cut short")) == "cut short"
