"""Python functions of installed packages and the standard library, turned into requests: complete, explain, test, …"""

from __future__ import annotations

import ast
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from prompt_sources import templates

MAX_SOURCE = 1400
MAX_DOCSTRING = 700


@dataclass(frozen=True, slots=True)
class Function:
    """One function as text."""

    name: str
    head: str
    """Signature and docstring."""
    source: str
    docstring: str
    arguments: tuple[str, ...]


KINDS = {"complete": 5, "explain": 3, "write": 3}
"""Relative frequencies."""


def functions(roots: Iterable[Path], random: Random) -> Iterator[dict[str, Any]]:
    """Prompts about the functions of all files under `roots`, each function once, in random order."""
    files = sorted({path for root in roots for path in root.rglob("*.py") if "test" not in str(path.relative_to(root))})
    random.shuffle(files)
    for path in files:
        for function in _read(path):
            yield _ask(function, random)


def _ask(function: Function, random: Random) -> dict[str, Any]:
    kind = random.choices(tuple(KINDS), tuple(KINDS.values()))[0]
    fields = {
        "name": function.name,
        "head": function.head,
        "source": function.source,
        "bare": function.source.replace(function.docstring, "...") if function.docstring else function.source,
        "docstring": function.docstring,
        "summary": " ".join(function.docstring.split("\n\n")[0].split()),
        "arguments": ", ".join(function.arguments),
    }
    return {"prompt": random.choice(templates.read("code")[kind]).format_map(fields), "kind": f"code: {kind}"}


def _read(path: Path) -> Iterator[Function]:
    try:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
        return
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
            function = _function(node, lines)
            if function is not None:
                yield function


def _function(node: ast.FunctionDef, lines: list[str]) -> Function | None:
    docstring = ast.get_docstring(node) or ""
    if node.end_lineno is None or not 20 <= len(docstring) <= MAX_DOCSTRING or len(node.body) < 2:
        return None
    source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
    head = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.body[0].end_lineno]))
    if len(source) > MAX_SOURCE or not source.isascii():
        return None
    arguments = tuple(a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls"))
    return Function(node.name, head, source, docstring, arguments)
