"""What a client measured: a JSON object whose keys that end in `tok_s` hold the speeds of its runs, one stream each.

`{"baseline_tok_s": [82.7, 82.4], "eagle3_tok_s": [60.2, 59.4]}`. A key with "baseline" or "plain" among its words is
plain decoding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from outpace.errors import ConfigError
from outpace.lab.doctor.evidence import Run
from outpace.lab.doctor.finding import Cite, Figure

SUFFIX = "tok_s"
MOST_SPEED = 1e9
PLAIN_WORDS = {"baseline", "plain"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Speeds by label, and which of them are the run's and plain decoding's; None where there is none."""

    source: str
    speeds: Mapping[str, tuple[float, ...]]
    run: str | None
    plain: str | None
    why: str
    """How the run's label was found."""

    def figure(self, label: str) -> Figure:
        """Median and range of one label."""
        speeds = self.speeds[label]
        return Figure(
            median(speeds), min(speeds), max(speeds), len(speeds), "client", Cite(f"{self.source} {label}"), speeds
        )

    @property
    def others(self) -> list[str]:
        """Labels of other speculative runs."""
        return [label for label in self.speeds if label not in (self.run, self.plain) and not _is_plain(label)]


def read_client(path: Path, subject: Run, run: str | None = None, plain: str | None = None) -> Client:
    """Reads a client's file and finds which of its labels belong to a log's run.

    Args:
        path: the JSON file.
        subject: the run that is looked at.
        run: label of its figures; None finds it, by the values of the run's settings where there are several.
        plain: label of plain decoding; None finds it.

    Raises:
        ConfigError: it cannot be read, or it is not clear which label is meant.
    """
    speeds = _speeds(path)
    for label in (run, plain):
        if label is not None and label not in speeds:
            raise ConfigError(f"{path.name} has no {label!r}; it has {', '.join(speeds)}")
    plain = plain or _only([label for label in speeds if _is_plain(label)], path, "plain", "--client-baseline")
    candidates = [label for label in speeds if label != plain and not _is_plain(label)]
    why = "named by the command" if run else "the only one"
    if run is None and len(candidates) > 1:
        candidates, why = _by_settings(candidates, subject)
    run = run or _only(candidates, path, "speculative", "--client-run")
    return Client(source=path.name, speeds=speeds, run=run, plain=plain, why=why)


def _speeds(path: Path) -> dict[str, tuple[float, ...]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; name a client's JSON file") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} is not JSON: {error}") from error
    found: dict[str, tuple[float, ...]] = {}
    for label, value in data.items() if isinstance(data, dict) else ():
        values = value if isinstance(value, list) else [value]
        if label.endswith(SUFFIX) and values:
            if not all(_is_speed(each) for each in values):
                raise ConfigError(
                    f"{path.name}: {label} is {value!r:.60}; it must be speeds above 0, at most {MOST_SPEED:g}"
                )
            found[label] = tuple(float(each) for each in values)
    if not found:
        raise ConfigError(f'{path.name} holds no speeds; give an object with keys such as "baseline_{SUFFIX}"')
    return found


def _is_speed(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value <= MOST_SPEED


def _is_plain(label: str) -> bool:
    return bool(PLAIN_WORDS & _words(label))


def _words(text: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", text.lower()))


def _by_settings(candidates: list[str], subject: Run) -> tuple[list[str], str]:
    """Labels that name a speculative setting and the value that it has."""
    for name, asked in subject.asked.items():
        if name.startswith("speculative_") and isinstance(asked.value, str):
            named = [label for label in candidates if names_setting(label, name, asked.value)]
            if len(named) == 1:
                return named, f"it names {name} = {asked.value}"
    return candidates, ""


def names_setting(label: str, name: str, value: str) -> bool:
    """Whether a label holds the value and a word of the setting's own name."""
    own = _words(name) - {"speculative"}
    return _words(value) <= _words(label) and bool(own & _words(label))


def _only(labels: list[str], path: Path, kind: str, flag: str) -> str | None:
    if len(labels) > 1:
        raise ConfigError(f"{path.name} has {len(labels)} {kind} runs ({', '.join(labels)}); say which: {flag} LABEL")
    return labels[0] if labels else None
