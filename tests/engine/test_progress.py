"""What `LLM.generate(progress=True)` writes to a terminal and to anything else."""

from __future__ import annotations

import errno
import io
from contextlib import nullcontext

import pytest

from engine.test_lossless import prompts
from engine.tiny import engine, tiny_target
from outpace import SamplingParams
from outpace.engine.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_terminal_gets_one_line_overwritten() -> None:
    out = Terminal()
    progress = Progress(2, out, Clock())
    progress.show(0, 3)
    progress.show(2, 8)
    assert out.getvalue() == "\r0/2 answers, 3 tokens\r2/2 answers, 8 tokens\n"


def test_a_log_gets_a_line_every_few_seconds_and_a_last_one() -> None:
    out, clock = io.StringIO(), Clock()
    progress = Progress(2, out, clock)
    for second in range(12):
        clock.now = 100.0 + second
        progress.show(0, second)
    progress.show(2, 99)
    assert out.getvalue().splitlines() == ["0/2 answers, 5 tokens", "0/2 answers, 10 tokens", "2/2 answers, 99 tokens"]


@pytest.mark.parametrize("gone", [errno.EIO, errno.EPIPE, errno.ENOSPC])
def test_a_closed_terminal_ends_no_answers(gone: int) -> None:
    class Closed(Terminal):
        def write(self, text: str) -> int:
            raise OSError(gone, "gone")

    progress = Progress(2, Closed(), Clock())
    with pytest.raises(OSError, match="gone") if gone == errno.ENOSPC else nullcontext():
        progress.show(0, 3)
        progress.show(2, 8)


def test_generate_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    llm = engine(tiny_target())
    llm.generate(prompts(3), SamplingParams(max_tokens=5, ignore_eos=True), progress=True)
    assert capsys.readouterr().err == "3/3 answers, 15 tokens\n"
