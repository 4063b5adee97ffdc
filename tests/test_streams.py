"""What is written to a stream that leads nowhere is lost, and is no error."""

from __future__ import annotations

import os

import pytest

from outpace.streams import to_nowhere


def test_a_pipe_that_nobody_reads_takes_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    monkeypatch.setattr(os, "open", lambda *arguments: nowhere)
    to_nowhere(writer)
    assert os.write(writer, b"x") == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(nowhere)  # nothing else is left open
    os.close(writer)


def test_one_that_was_closed_is_what_opening_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open(os.devnull, os.O_WRONLY)
    monkeypatch.setattr(os, "open", lambda *arguments: descriptor)
    to_nowhere(descriptor)
    assert os.write(descriptor, b"x") == 1
    os.close(descriptor)
