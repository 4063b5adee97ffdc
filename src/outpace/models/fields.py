"""Typed reading of a JSON object from a checkpoint: a field is there and of its kind, or the error names it.

Every name that is asked for is remembered, so that the caller can say which fields nobody read.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outpace.errors import CheckpointError

MAX_JSON_BYTES = 16 << 20
"""The largest files are indices of thousands of experts, under 10 MB."""

_MAX_INTEGER = 2**31 - 1


class Fields:
    """One JSON object. `origin` is how errors call it. A field that is null counts as absent."""

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        self.values, self.origin = values, origin
        self.read: set[str] = set()

    def get(self, name: str) -> Any:
        self.read.add(name)
        return self.values.get(name)

    def unread(self) -> list[str]:
        """Names of the fields that were never asked for and are not null."""
        return sorted(name for name, value in self.values.items() if name not in self.read and value is not None)

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = _MAX_INTEGER) -> int:
        value = self._present(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise CheckpointError(
                f"{self.origin}: {name} is {value!r}; it must be a whole number in {minimum} … {maximum}"
            )
        return value

    def number(self, name: str, default: float | None = None, *, above: float = 0.0) -> float:
        """A number above a limit."""
        value = self._present(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not above < value <= 1e300:
            raise CheckpointError(
                f"{self.origin}: {name} is {value!r}; it must be a number above {above:g}, 1e300 at most"
            )
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._present(name, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"{self.origin}: {name} is {value!r}; it must be true or false")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One id, a list of ids, or nothing."""
        value = self.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise CheckpointError(f"{self.origin}: {name} is {value!r}; it must be a token id or a list of them")
        return tuple(dict.fromkeys(ids))

    def _present(self, name: str, default: object) -> Any:
        value = self.get(name)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{self.origin}: {name} is missing; without it the model is not described")
        return value


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object from a file.

    Raises:
        CheckpointError: the file is missing, unreadable, too large, not JSON or not an object, or it gives one name
            two values.
    """
    try:
        check_size(path, MAX_JSON_BYTES)
        values = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.parent} has no {path.name}; it is not a whole checkpoint") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); fetch the checkpoint again") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds a {type(values).__name__}; it must be a JSON object")
    return values


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Readers differ in which of two values they take."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values and values[name] != value:
            raise ValueError(f"{name!r:.80} comes twice, as {values[name]!r:.80} and as {value!r:.80}")
        values[name] = value
    return values


def check_file(path: Path) -> int:
    """Bytes of a file. Raises CheckpointError for a pipe or a device, which reading might never end; OSError if it is
    not there."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path} is no regular file; fetch the checkpoint again")
    return found.st_size


def check_size(path: Path, limit: int) -> None:
    """As `check_file`, and raises CheckpointError for a file of more than `limit` bytes."""
    if (size := check_file(path)) > limit:
        raise CheckpointError(f"{path} has {size} bytes; at most {limit} are read: fetch the checkpoint again")
