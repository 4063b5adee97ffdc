"""What stands before a message: clocks, ranks, a worker's or a container's prefix; and lines that ran into each other.

SGLang writes `[2026-02-26 20:40:02 DP0 TP3] message`, vLLM `(APIServer pid=7) INFO 08-04 20:51:08 [file.py:9] message`;
what starts them (docker, ray, journald, a launcher) may write its own prefix before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from outpace.lab.logs.records import Head

_HEAD = re.compile(
    r"\[(?P<sglang>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)(?P<ranks>(?: [A-Z]{1,4}\d{1,5}){0,6})\] ?"
    r"|(?:\((?P<process>[A-Za-z_]\w{0,40})[^()]{0,60}\) )?"
    r"(?:DEBUG|INFO|WARNING|ERROR) (?P<vllm>\d\d-\d\d \d\d:\d\d:\d\d) (?:\[[^\][]{1,80}\] |[\w.]{1,60}:\d{1,6}\] )?"
)
_ANSI = re.compile(r"\x1b\[[0-9;]{0,12}[A-Za-z]")
_CLOCKS = re.compile(r"\S*\d\d:\d\d:\d\d\S*|\d{4}-\d\d-\d\d")
_HINTS = ("[2", "INFO ", "WARNING ", "ERROR ", "DEBUG ")
"""Every head holds one of these; looking for them is far quicker than for heads."""
MOST_PREFIX = 60


def entries(line: int, text: str) -> Iterator[tuple[Head, str]]:
    """The messages on one line: several where processes wrote into each other, one without a head as it stands."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    heads = _heads(text)
    if not heads:
        yield Head(line, None, ""), text.strip()
        return
    before = text[: heads[0].start()]
    if len(before) > MOST_PREFIX:  # the end of another message, not somebody's prefix
        yield Head(line, None, ""), before.strip()
        before = ""
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=True):
        prefix = _prefix(before) if before else ""
        rank = " ".join(filter(None, (prefix, (head["ranks"] or "").strip(), head["process"] or "")))
        yield Head(line, head["sglang"] or head["vllm"], rank), text[head.end() : end].strip()
        before = ""


def _heads(text: str) -> list[re.Match[str]]:
    first = _HEAD.match(text)
    if first is not None and not any(map(text[first.end() :].__contains__, _HINTS)):
        return [first]
    return list(_HEAD.finditer(text)) if any(map(text.__contains__, _HINTS)) else []


def _prefix(before: str) -> str:
    """Somebody's prefix without its clock, so that it names the same writer on every line."""
    return " ".join(_CLOCKS.sub("", before).strip(" |:").split())
