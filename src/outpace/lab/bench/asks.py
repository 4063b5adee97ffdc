"""What a server is asked: evaluation prompts, prompts of a wished length made of them, or a file. Never random tokens.

Random tokens make a degenerate text that drafters guess too well or not at all, so speeds on them say nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from outpace.errors import ConfigError
from outpace.lab.bench.settings import LONGEST
from outpace.lab.workload.eval_sets import SETS, load
from outpace.wording import reason

MAX_LINES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request's content."""

    id: str
    set: str
    messages: tuple[dict[str, Any], ...]
    max_tokens: int | None = None
    """Longest answer, where the workload says so itself."""

    @property
    def prompt(self) -> str:
        """As a text to continue."""
        return "\n\n".join(str(message.get("content", "")) for message in self.messages)


def read_asks(workload: Sequence[str], num: int) -> list[Ask]:
    """So many requests, spread evenly over the sources; asked again from the start where the sources have fewer.

    Raises:
        ConfigError: a source is neither a set nor a file, or a file is broken or empty.
    """
    names = list(workload) or list(SETS)
    shares = [num // len(names) + (place < num % len(names)) for place in range(len(names))]
    asked = [
        [_nth(source, turn) for turn in range(share)]
        for share, source in ((share, _source(name, share)) for name, share in zip(names, shares, strict=True) if share)
    ]
    return [ask for turn in zip_longest(*asked) for ask in turn if ask is not None]


def _nth(source: Sequence[Ask], turn: int) -> Ask:
    ask, again = source[turn % len(source)], turn // len(source)
    return replace(ask, id=f"{ask.id} ({again + 1})") if again else ask


def _source(name: str, share: int) -> list[Ask]:
    if name in SETS:
        return [
            Ask(id=f"{name}/{prompt.id}", set=name, messages=tuple(prompt.messages)) for prompt in load(name, share)
        ]
    if Path(name).is_file():
        return read_file(Path(name))
    raise ConfigError(
        f"workload {name!r} is neither one of {', '.join(SETS)} nor a file; name a JSONL file that exists"
    )


def read_file(path: Path) -> list[Ask]:
    """A JSON value a line: a text, or an object with "prompt", "messages" or "turns", and "max_tokens" if it likes.

    Raises:
        ConfigError: it cannot be read, a line is something else, or there is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[:MAX_LINES]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read workload {path}: {reason(error)}; name a JSONL file") from error
    asks = [_line(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not asks:
        raise ConfigError(f"workload {path} is empty; it needs a JSON value on at least one line")
    return asks


def _line(path: Path, number: int, line: str) -> Ask:
    where = f"workload {path} line {number}"
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is no JSON ({error}); it needs one JSON value a line") from error
    row = value if isinstance(value, dict) else {"prompt": value}
    messages = row.get("messages")
    if messages is None:
        turns = row.get("turns")
        text = turns[0] if isinstance(turns, list) and turns else row.get("prompt")
        messages = [{"role": "user", "content": text}] if isinstance(text, str) and text else None
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise ConfigError(f'{where} has no text: it needs a text, or an object with "prompt", "messages" or "turns"')
    most = row.get("max_tokens")
    if most is not None and not (isinstance(most, int) and 1 <= most <= LONGEST):
        raise ConfigError(f"{where} has max_tokens {most!r}; it must be an integer in 1 … {LONGEST}")
    return Ask(id=f"{path.name}:{number}", set=path.name, messages=tuple(messages), max_tokens=most)


def of_length(asks: Sequence[Ask], num_tokens: int, characters_per_token: float, seed: int) -> list[Ask]:
    """Requests of about so many tokens: each begins with its own prompt, others follow in an order of their own."""
    length = max(1, round(num_tokens * characters_per_token))
    return [_of_length(asks, place, length, random.Random(f"{seed} {place}")) for place in range(len(asks))]


def _of_length(asks: Sequence[Ask], place: int, length: int, draw: random.Random) -> Ask:
    text = asks[place].prompt
    while len(text) < length:
        text += "\n\n" + draw.choice(asks).prompt
    return replace(asks[place], messages=({"role": "user", "content": text[:length]},))
