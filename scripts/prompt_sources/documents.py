"""Passages of licence-clean texts (Python's and Debian's documentation), turned into requests about them."""

from __future__ import annotations

import gzip
import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from prompt_sources import templates


def passages(rst_root: Path, text_files: Iterable[Path], random: Random) -> Iterator[dict[str, Any]]:
    """Prompts about paragraphs, each once, in random order.

    Args:
        rst_root: reStructuredText sources, `*.rst.txt`.
        text_files: plain texts, may be gzipped.
    """
    found = [p for path in sorted(rst_root.rglob("*.rst.txt")) for p in _paragraphs(_plain(path.read_text("utf-8")))]
    for path in text_files:
        data = path.read_bytes()
        found += _paragraphs((gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8"))
    random.shuffle(found)
    shapes = templates.read("documents")
    for first, second in zip(found, found[1:] + found[:1], strict=True):
        passage = first if len(first) > 350 or random.random() < 0.5 else f"{first}\n\n{second}"
        form = random.choice(shapes["passage"])
        yield {"prompt": form.format(passage=passage, audience=random.choice(shapes["audiences"])), "kind": "passage"}


def names(rst_root: Path, random: Random) -> Iterator[dict[str, Any]]:
    """Prompts about documented Python names, each once, in random order."""
    pattern = re.compile(r"^\.\. (?:function|method|class|exception|module|data|attribute|decorator):: ([\w.]+)", re.M)
    found = sorted({name for path in rst_root.rglob("*.rst.txt") for name in pattern.findall(path.read_text("utf-8"))})
    random.shuffle(found)
    for name in found:
        yield {"prompt": random.choice(templates.read("documents")["name"]).format(name=name), "kind": "python name"}


def _plain(text: str) -> str:
    text = re.sub(r":[\w:]+:`[!~]?([^`<]+?)(?:\s*<[^`>]*>)?`", r"\1", text)
    text = re.sub(r"``([^`]+)``", r"\1", text)
    return re.sub(r"`([^`<]+?)\s*<[^`>]*>`_+", r"\1", text)


def _paragraphs(text: str) -> list[str]:
    blocks = (" ".join(block.split()) for block in re.split(r"\n\s*\n", html.unescape(text)))
    return [block for block in blocks if 160 <= len(block) <= 900 and _is_prose(block)]


def _is_prose(block: str) -> bool:
    return block[0].isupper() and block[-1] in ".!?" and block.isascii() and ".." not in block
