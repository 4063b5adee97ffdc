"""Reads a log, line by line and in bounded memory: every entry comes out as a record or as unread, none is dropped.

A log may be anything: another program's, binary, cut in the middle. Reading it never fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from outpace.lab.logs import sglang, vllm
from outpace.lab.logs.heads import entries
from outpace.lab.logs.records import Head, Reason, Record, Report, Unread

MOST_LINE = 1 << 18
"""Bytes of a line that is read; the rest of a longer one counts as further lines that are too long."""
MOST_EXAMPLES = 3
MOST_TEXT = 120

WATCHED = (
    "speculative_attention_mode",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_num_draft_tokens",
    "attention_backend",
    "disable_cuda_graph",
    "disable_custom_all_reduce",
    "cudagraph_mode",
    "enforce_eager",
)
"""Settings whose values are taken where a line reports them by name."""

_OURS = (*sglang.BEGINNINGS, *vllm.BEGINNINGS)
_REPORTS = (*WATCHED, " backend")
"""What a line contains that may report a setting."""
_NAMED = re.compile(rf"\b({'|'.join(WATCHED)})\b\s{{0,3}}[=:]\s{{0,3}}['\"]?([\w.-]{{1,60}})")
_BACKEND = re.compile(
    r"Using (?:AttentionBackendEnum\.)?([A-Z]\w{1,40}) attention backend"
    r"|Using ([A-Z]\w{1,40}(?: \w{1,20})?) backend on V1 engine|Use (\w{2,40}) (?:attention )?backend by default"
)


def read_log(file: BinaryIO) -> Iterator[Record | Unread]:
    """Every entry of a log, in order. Lines count from 1; a line without its end is read like the others."""
    number, whole = 0, True
    while raw := file.readline(MOST_LINE):
        number += whole
        ends = raw.endswith(b"\n")
        if not whole or (not ends and len(raw) == MOST_LINE):
            yield Unread(number, "too long", _short(raw.decode("utf-8", "replace")))
        else:
            yield from read_line(number, raw.decode("utf-8", "replace"))
        whole = ends or len(raw) < MOST_LINE


def read_line(number: int, text: str) -> Iterator[Record | Unread]:
    """The entries of one line: one, or more where processes wrote into each other."""
    if not text.strip():
        yield Unread(number, "blank", "")
        return
    if not _holds(text, _OURS):
        yield _other(number, text)
        return
    for head, message in entries(number, text.rstrip("\r\n")):
        yield _entry(head, message)


def _holds(text: str, parts: tuple[str, ...]) -> bool:
    """Whether any of the parts is in it; many times quicker than one pattern of them all."""
    return any(map(text.__contains__, parts))


def _entry(head: Head, text: str) -> Record | Unread:
    record = sglang.read(head, text) or vllm.read(head, text)
    if record is not None:
        return record
    reason: Reason = "cut short" if _holds(text, _OURS) else "not about speed"
    return Unread(head.line, reason, _short(text))


def _other(number: int, text: str) -> Record | Unread:
    """A line of another kind; it may still report a setting."""
    likely = _holds(text, _REPORTS)
    named = _NAMED.search(text) if likely else None
    backend = _BACKEND.search(text) if likely and named is None else None
    if named is None and backend is None:
        return Unread(number, "not about speed", _short(text))
    head, _ = next(entries(number, text))
    if named is not None:
        return Report(head=head, setting=named[1], value=named[2])
    assert backend is not None
    return Report(head=head, setting="attention_backend", value=next(filter(None, backend.groups())))


def _short(text: str) -> str:
    return text.strip()[:MOST_TEXT]


@dataclass(slots=True)
class Tally:
    """How much of a log was read: counts, and a few examples of each kind that was not."""

    records: int = 0
    unread: dict[Reason, int] = field(default_factory=dict)
    examples: dict[Reason, list[Unread]] = field(default_factory=dict)

    @property
    def num_lines(self) -> int:
        """All entries, which are lines unless processes wrote into each other."""
        return self.records + sum(self.unread.values())

    def add(self, entry: Record | Unread) -> None:
        if not isinstance(entry, Unread):
            self.records += 1
            return
        self.unread[entry.reason] = self.unread.get(entry.reason, 0) + 1
        shown = self.examples.setdefault(entry.reason, [])
        if entry.text and len(shown) < MOST_EXAMPLES:
            shown.append(entry)
