"""Was the change applied? What was asked of each side against what its server says that it came to.

A server's own word is what it resolved; what was observed is told beside it. Where nobody says anything the answer is
unknown, never yes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outpace.fingerprint.diff import Change, compare
from outpace.fingerprint.kept import Kept
from outpace.lab.bench.subject import Subject
from outpace.lab.doctor import settings as doctor
from outpace.lab.doctor.case import Case, measure
from outpace.lab.doctor.evidence import Run
from outpace.lab.experiments.record import Applied, State

ALIASES = {"drafter": "drafter_source"}
"""Options of `outpace serve` that its settings hold under another name."""
FOUND_ANEW = re.compile(r"(^|\.)(port|url|control|graphs|num_pages|kv_bytes|.*time.*|.*_id)(\.|$)")
"""What differs between any two starts of a server."""
MACHINE = "fingerprint"
"""What a server of ours says of the machine that it runs on."""
MOST_NAMED = 20


def asked(a: Subject, b: Subject, settings: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """(of A, of B) by setting: those that were named, and the options in which the two differ."""
    options_a, options_b = _options(a.flags), _options(b.flags)
    found = {
        name: (options_a.get(name, ""), options_b.get(name, ""))
        for name in {**options_a, **options_b}
        if options_a.get(name) != options_b.get(name)
    }
    for name, value in settings.items():
        found[_normal(name)] = (options_a.get(_normal(name), ""), value)
    if a.commit != b.commit:
        found["commit"] = (a.commit or "", b.commit or "")
    return found


def judge(name: str, asked_a: str, asked_b: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Applied:
    """One setting, by what the two servers say of theirs."""
    says_a, says_b = says(name, a), says(name, b)
    state, why = _state(asked_a, asked_b, says_a, says_b)
    return Applied(
        name=name,
        asked_a=asked_a,
        asked_b=asked_b,
        says_a=_shown(says_a),
        says_b=_shown(says_b),
        state=state,
        why=why,
    )


def by_logs(found: Applied, a: Sequence[Run], b: Run) -> Applied:
    """The same with what the servers' logs say, where the servers themselves said nothing."""
    if found.state != "unknown":
        return found
    case = Case(subject=b, others=a)
    (finding,) = (
        f for f in doctor.findings(case, measure(case), [found.name]) if f.question == f"was {found.name} applied"
    )
    resolved = str(finding.numbers.get("resolved") or "")
    state: State = "unknown"
    if resolved and found.asked_b and not same(found.asked_b, resolved):
        state = "not applied"
    elif "a change was seen" in finding.answer:
        state = "applied"
    return Applied(
        name=found.name,
        asked_a=found.asked_a,
        asked_b=found.asked_b,
        says_a=found.says_a,
        says_b=resolved,
        state=state,
        why=f"by the logs: {finding.answer}. {finding.text}",
    )


def overall(found: Sequence[Applied]) -> State:
    """Of the whole change: one setting that was not applied spoils it, one that is unknown leaves it unknown."""
    states = {each.state for each in found}
    return "not applied" if "not applied" in states else "applied" if states == {"applied"} else "unknown"


def also_different(a: Mapping[str, Any], b: Mapping[str, Any], named: Sequence[str]) -> list[str]:
    """What else the two servers report otherwise; of the machines that they ran on, what may move a figure."""
    first, second = (dict(_flat("", {name: v for name, v in each.items() if name != MACHINE})) for each in (a, b))
    changes = [
        (name, first.get(name), second.get(name))
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name) and not FOUND_ANEW.search(name)
    ]
    changes += [(f"{MACHINE}.{each.field}", each.a, each.b) for each in _of_machines(a.get(MACHINE), b.get(MACHINE))]
    known = {ALIASES.get(name, name) for name in named} | set(named)
    differ = [
        f"{name}: {_shown(of_a)} → {_shown(of_b)}"
        for name, of_a, of_b in changes
        if not known & {_normal(part) for part in name.split(".")}
    ]
    return differ[:MOST_NAMED] + ([f"and {len(differ) - MOST_NAMED} more"] if len(differ) > MOST_NAMED else [])


def _of_machines(a: Any, b: Any) -> Sequence[Change]:
    """Nothing where one of the two servers does not tell of its machine."""
    if not isinstance(a, Mapping) or not isinstance(b, Mapping):
        return ()
    return compare(*(Kept(source="", machine=dict(told), settings={}) for told in (a, b))).causes


def says(name: str, settings: Mapping[str, Any]) -> Any:
    """The value that a server reports for a setting; "" where it reports none, or several.

    Of ours the engine's own is the setting: control has a k too, the one that it chose.
    """
    wanted = {_normal(name), ALIASES.get(_normal(name), "")} - {""}
    found = {
        field: value
        for field, value in _flat("", settings)
        if _normal(field) in wanted or _normal(field.rpartition(".")[2]) in wanted
    }
    values = [value for field, value in found.items() if field.startswith("engine.")] or list(found.values())
    return values[0] if values and all(value == values[0] for value in values) else ""


def same(asked: str, told: Any) -> bool:
    """As numbers if both are, else as words; "none" and "false" are what a server may call None and False."""
    words = [str(value).strip().lower() for value in (asked, told)]
    try:
        return float(words[0]) == float(words[1])
    except ValueError:
        return words[0] == words[1]


def _state(asked_a: str, asked_b: str, says_a: Any, says_b: Any) -> tuple[State, str]:
    if says_b == "":
        return "unknown", "B's server does not say what it has"
    if asked_b and not same(asked_b, says_b):
        return "not applied", f"{asked_b} was asked of B and its server has {_shown(says_b)}"
    if says_a == "":
        return "unknown", "B's server has what was asked, A's does not say what it has"
    if says_a == says_b:
        return "not applied", f"A has {_shown(says_a)} too, so the two do not differ in it"
    if asked_a and not same(asked_a, says_a):
        return "not applied", f"{asked_a} was asked of A and its server has {_shown(says_a)}"
    return "applied", f"A's server has {_shown(says_a)}, B's has {_shown(says_b)}"


def _options(flags: Sequence[str]) -> dict[str, str]:
    """`--k 4 --no-prefix-reuse` as {"k": "4", "prefix_reuse": "false"}."""
    found: dict[str, str] = {}
    name = ""
    for word in flags:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            off = name.startswith("no-")
            name = _normal(name.removeprefix("no-"))
            found[name] = value or ("false" if off else "true")
        elif name:
            found[name] = word if found[name] == "true" else f"{found[name]} {word}"
    return found


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _normal(name: str) -> str:
    return name.strip().lstrip("-").replace("-", "_").lower()


def _shown(value: Any) -> str:
    return "" if value == "" else str(value)
