"""Fingerprints in files: one that `outpace fingerprint --json` wrote, or the one that every result file holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outpace.errors import ConfigError
from outpace.wording import reason

PLACES = ("fingerprint", "machine", "client")
"""Where result files hold it."""
MARKS = {"cpu", "os", "python"}
"""What every fingerprint has."""
MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one file holds."""

    source: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    """As resolved by whatever was measured; empty where the file has none."""


def read(path: Path) -> Kept:
    """The fingerprint in a file; of several records, one a line, the last.

    Raises:
        ConfigError: it cannot be read, or holds none.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{path} has {path.stat().st_size:,} bytes; a result file has at most {MOST_BYTES:,}")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}; name a fingerprint or a result file") from error
    for record in _records(text):
        machine = _machine(record)
        if machine is not None:
            rest = {name: value for name, value in machine.items() if name != "settings"}
            return Kept(source=str(path), machine=rest, settings=_settings(record))
    raise ConfigError(
        f"{path} holds no fingerprint; give what outpace fingerprint --json wrote, or a result file of bench, compare, "
        "demo or a benchmark"
    )


def _records(text: str) -> Iterator[dict[str, Any]]:
    """The whole as one, else its lines, the last one first."""
    for part in (text, *reversed(text.splitlines())):
        try:
            found = json.loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


def _machine(record: dict[str, Any]) -> dict[str, Any] | None:
    for found in (record, *(record.get(place) for place in PLACES)):
        if isinstance(found, dict) and found.keys() >= MARKS:
            return found
    return None


def _settings(record: dict[str, Any]) -> dict[str, Any]:
    """What the record holds beside it: a fingerprint's or the demo's settings, bench's server, compare's two."""
    if isinstance(record.get("settings"), dict):
        return dict(record["settings"])
    if isinstance(server := record.get("server"), dict):
        return _of_server(server)
    sides = {name: record[name].get("server") for name in "ab" if isinstance(record.get(name), dict)}
    if sides and all(isinstance(server, dict) for server in sides.values()):
        return {name: _of_server(server) for name, server in sides.items()}
    return record["model"] if isinstance(record.get("model"), dict) else {}


def _of_server(server: dict[str, Any]) -> dict[str, Any]:
    settings = server.get("settings")
    known = {f"server_{name}": server.get(name) for name in ("engine", "version", "max_context")}
    return {**(settings if isinstance(settings, dict) else {}), **known}
