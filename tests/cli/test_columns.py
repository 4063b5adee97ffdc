from __future__ import annotations

import io
import os
import shutil

import pytest

from outpace.cli.columns import Columns, wrap
from outpace.cli.status import Status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(written: str) -> list[str]:
    """What a terminal shows after these writes: newlines, "up n lines" and "erase to the end" are understood."""
    lines, row = [""], 0
    for part in written.split("\x1b["):
        if part.startswith("K"):
            lines[row], part = "", part[1:]
        elif part[:1].isdigit():
            up, _, part = part.partition("A")
            row -= int(up)
        for index, text in enumerate(part.split("\n")):
            if index:
                row += 1
                if row == len(lines):
                    lines.append("")
            if text:
                lines[row] = text
    return [line.rstrip() for line in lines]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda fallback=(80, 24): os.terminal_size((84, 24)))
    return Terminal()


def test_texts_stand_side_by_side(wide: Terminal) -> None:
    columns = Columns(wide, ("plain", "fast"))
    columns.begin()
    for piece in ("The sky ", "is blue."):
        columns.add("plain", piece)
    columns.close("plain", "10 tok/s")
    columns.add("fast", "The sky is blue.")
    columns.close("fast", "20 tok/s")
    shown = screen(wide.getvalue())
    assert [[cell.strip() for cell in line.split("│")] for line in shown if line] == [
        ["plain", "fast"],
        ["The sky is blue.", "The sky is blue."],
        ["", ""],
        ["10 tok/s", "20 tok/s"],
    ]


def test_a_long_text_stays_on_the_screen(wide: Terminal) -> None:
    columns = Columns(wide, ("plain", "fast"))
    columns.begin()
    columns.add("plain", "\n".join(f"line {i}" for i in range(60)))
    columns.add("fast", "x")
    shown = screen(wide.getvalue())
    assert len(shown) <= 24
    assert "line 59" in "".join(shown)


def test_without_a_terminal_they_stand_one_above_the_other() -> None:
    out = io.StringIO()
    columns = Columns(out, ("plain", "fast"))
    columns.begin()
    columns.add("plain", "The sky")
    columns.add("plain", " is blue.")
    columns.close("plain", "10 tok/s")
    columns.add("fast", "The")
    assert out.getvalue() == "plain:\nThe sky is blue.\n  10 tok/s\n\nfast:\nThe"


def test_wrapping_keeps_lines_and_indentation() -> None:
    assert wrap("def f():\n    return 1\n\nend", 20) == ["def f():", "    return 1", "", "end"]
    assert all(len(line) <= 10 for line in wrap("a" * 25 + " b c d", 10))


def test_status_leaves_nothing_behind_in_a_terminal() -> None:
    out = Terminal()
    status = Status(out)
    status.show("timing: plain")
    status.clear()
    assert screen(out.getvalue().replace("\r", "")) == [""]


def test_status_names_each_stage_once_elsewhere() -> None:
    out = io.StringIO()
    status = Status(out)
    for text in ("loading", "timing prompt 1: plain", "timing prompt 1: fast", "", "done"):
        status.show(text)
    assert out.getvalue() == "loading\ntiming prompt 1\ndone\n"


def test_status_tells_of_a_long_stage_now_and_then_elsewhere() -> None:
    out, now = io.StringIO(), 0.0
    status = Status(out, lambda: now)
    for now in (0.0, 10.0, 20.0, 30.0, 40.0):
        status.show(f"measuring: {now:.0f} of 40 requests")
    assert out.getvalue() == "measuring\nmeasuring: 20 of 40 requests\nmeasuring: 40 of 40 requests\n"
