"""Training prompts: a JSONL file, one prompt a line, plain or gzipped.

A line is a text, or an object with `prompt`, `turns` (user turns, each asked after the one before was answered) or
`messages` (a conversation that ends with the user; its assistant messages are context, not lessons).
An optional `kind` is counted and shown.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outpace.errors import ConfigError
from outpace.wording import reason

Message = dict[str, str]

ROLES = ("system", "user", "assistant")

_FORMS = (
    'write a text in quotes, {"prompt": "…"}, {"turns": ["…", …]} or {"messages": [{"role": "user", "content": "…"}]} '
    "on one line"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the target is asked: a conversation that ends with the user, then further user turns."""

    messages: tuple[Message, ...]
    followups: tuple[str, ...] = ()
    kind: str = ""


def read_prompts(path: Path) -> list[Prompt]:
    """All prompts of a file.

    Raises:
        ConfigError: the file is missing or empty, or a line is none of the forms above; names the line.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(
            f"prompts {path} cannot be read ({reason(error)}); give a JSONL file, plain or .gz"
        ) from error
    lines = enumerate(text.split("\n"), start=1)
    prompts = [_parse(path, number, line) for number, line in lines if line.strip()]
    if not prompts:
        raise ConfigError(f"prompts {path} holds no prompt; give one JSON value a line")
    return prompts


def _parse(path: Path, number: int, line: str) -> Prompt:
    try:
        return to_prompt(json.loads(line))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} line {number} is not JSON ({error}); {_FORMS}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} line {number}: {error}; {_FORMS}") from error


def to_prompt(value: Any) -> Prompt:
    """One parsed line.

    Raises:
        ValueError: it is none of the accepted forms.
    """
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise ValueError(f"a {type(value).__name__} is no prompt")
    kind = str(value.get("kind", ""))
    if _is_text(value.get("prompt")):
        return Prompt(messages=(_user(value["prompt"]),), kind=kind)
    turns = value.get("turns")
    if isinstance(turns, list) and turns and all(map(_is_text, turns)):
        return Prompt(messages=(_user(turns[0]),), followups=tuple(turns[1:]), kind=kind)
    messages = value.get("messages")
    if isinstance(messages, list) and messages and all(map(_is_message, messages)) and messages[-1]["role"] == "user":
        kept = tuple({"role": m["role"], "content": m["content"]} for m in messages)
        return Prompt(messages=kept, kind=kind)
    raise ValueError("an object needs a `prompt` text, a list of `turns`, or `messages` that end with the user")


def extend_digest(digest: str, prompts: Iterable[Prompt]) -> str:
    """The sha256 of a list of prompts that grew by some, from that of the list before; an empty list's is ""."""
    for prompt in prompts:
        text = json.dumps([digest, prompt.messages, prompt.followups])
        digest = hashlib.sha256(text.encode()).hexdigest()
    return digest


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and value.get("role") in ROLES and isinstance(value.get("content"), str)
