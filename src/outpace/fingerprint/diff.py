"""What changed between two fingerprints: the likeliest causes of a change of speed first, noise apart.

A field that only one of the two holds was not recorded in the other: whether it changed is not known, and that is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from outpace.fingerprint.causes import RULES, Rule, number
from outpace.fingerprint.kept import Kept

REBOOT = "uptime_s"
UNSET = "not set"
OTHER = Rule(r".*", 6, "nothing is known of its effect")
SERVERS = "settings.fingerprint."
"""Before what a server of ours tells of its own machine among its settings."""
_GPU = re.compile(r"((?:settings\.fingerprint\.)?gpus)\.\d+(\..*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field. `rank` 1 is the likeliest cause."""

    field: str
    a: Any
    b: Any
    rank: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Of two fingerprints."""

    a: str
    b: str
    causes: tuple[Change, ...]
    """Likeliest first."""
    noise: tuple[Change, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    num_same: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def compare(a: Kept, b: Kept) -> Difference:
    """What changed from A to B."""
    first, second = _fields(a), _fields(b)
    _fill_unset(a, b, first, second)
    cores = number(str(first.get("cores", 1))) or 1.0
    causes: list[Change] = []
    noise: list[Change] = []
    num_same = 0
    for field in first.keys() & second.keys():
        if first[field] == second[field]:
            num_same += 1
            continue
        change, flickers = _judged(field, first[field], second[field], cores)
        (noise if flickers else causes).append(change)
    return Difference(
        a=a.source,
        b=b.source,
        causes=tuple(sorted(causes, key=_order)),
        noise=tuple(sorted(noise, key=_order)),
        only_in_a=_missing(first, second),
        only_in_b=_missing(second, first),
        num_same=num_same,
    )


def _fill_unset(a: Kept, b: Kept, first: dict[str, Any], second: dict[str, Any]) -> None:
    """All variables that move speed are recorded, so one that is absent was not set."""
    for part in ("environment", "processes"):
        if a.machine.get(part) is None or b.machine.get(part) is None:
            continue
        if part == "processes" and len(a.machine[part]) != len(b.machine[part]):
            continue
        names = [name for name in first.keys() | second.keys() if name.startswith(f"{part}.")]
        for fields in (first, second):
            fields |= {name: UNSET for name in names if name not in fields}


def _judged(field: str, a: Any, b: Any, cores: float) -> tuple[Change, bool]:
    """The change, and whether it is but noise."""
    judged_as = field.removeprefix(SERVERS)
    rule = next((rule for rule in RULES if re.fullmatch(rule.pattern, judged_as)), OTHER)
    if judged_as == REBOOT and (number(str(b)) or 0.0) < (number(str(a)) or 0.0):
        return Change(field=field, a=a, b=b, rank=5, why="the machine was started anew between, or is another"), False
    shown = [", ".join(map(str, value)) if isinstance(value, list) else str(value) for value in (a, b)]
    flickers = rule.is_noise is not None and rule.is_noise(shown[0], shown[1], cores)
    return Change(field=field, a=a, b=b, rank=rule.rank, why=rule.why), flickers


def _order(change: Change) -> tuple[int, str]:
    return change.rank, change.field


def _missing(has: Mapping[str, Any], lacks: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(has.keys() - lacks.keys()))


def _fields(kept: Kept) -> dict[str, Any]:
    """Everything under dotted names; None counts as not recorded."""
    settings = dict(kept.settings)
    servers = settings.pop("fingerprint", None)
    found = _of_machine("", kept.machine) | dict(_flat("settings.", settings))
    return found | _of_machine(SERVERS, servers) if isinstance(servers, Mapping) else found


def _of_machine(prefix: str, told: Mapping[str, Any]) -> dict[str, Any]:
    machine = dict(told)
    gpus = machine.pop("gpus", None) or []
    processes = machine.pop("processes", None) or []
    found = dict(_flat(prefix, machine))
    found[f"{prefix}gpus.count"] = len(gpus)
    for place, gpu in enumerate(gpus):
        found |= dict(_flat(f"{prefix}gpus.{place}.", gpu))
    for place, process in enumerate(processes):
        found |= dict(_flat(f"{prefix}processes.{place}.", process.get("environment", {})))
    return found


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        elif value is not None:
            yield f"{prefix}{name}", value


def alike(changes: tuple[Change, ...]) -> list[tuple[Change, int]]:
    """Changes with their number of GPUs: what changed alike on several is one line."""
    groups: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        gpu = _GPU.fullmatch(change.field)
        key = gpu[1] + gpu[2] if gpu else change.field
        groups.setdefault((key, str(change.a), str(change.b)), []).append(change)
    return [(found[0], len(found)) for found in groups.values()]
