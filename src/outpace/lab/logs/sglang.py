"""SGLang's lines: arguments, batches, graphs, and the per-cycle profile of an instrumented server.

A batch line reads `Decode batch, #running-req: 1, #token: 113, …, gen throughput (token/s): 119.32, #queue-req: 0`;
older versions write `Decode batch.`, and versions add fields. The profile reads
`EAGLE3 profile over 40 cycles | Draft: 0.61 ms/cyc ( 2.0%) | Target verify: …`.
"""

from __future__ import annotations

import re

from outpace.lab.logs.literals import read_arguments
from outpace.lab.logs.records import Capture, Decode, Head, Prefill, Profile, Ready, Record, Settings

_BATCH = re.compile(r"(Decode|Prefill) batch(?: \[\d+\])?[.,] ?")
_FIELD = re.compile(r"(?:^|, )([^,:]{1,60}): ([^,]{0,60})")
_DECIMAL = re.compile(r"\d{1,9}\.\d{1,6}")
_WHOLE = re.compile(r"\d{1,15}")
_PROFILE = re.compile(r"\bprofile over (\d{1,9}) cycles? \|")
_PHASE = re.compile(r"(\w[\w /+-]{0,40}): {0,20}(\d{1,9}(?:\.\d{1,6})?) ms/cyc \( {0,5}(\d{1,3}(?:\.\d{1,3})?)%\)")
_CAPTURE = re.compile(r"Capture ((?:[\w-]+ ){0,4}graph)s? end\b", re.IGNORECASE)
_TOKENS = ("#token", "#full token")
"""The second of models that keep less than all tokens in some layers."""
_LENGTHS, _RATES = ("accept len", "avg_accept_len"), ("accept rate", "accept_rate")
_GRAPHS = ("cuda graph", "npu graph", "cpu graph")
_RATE = "gen throughput (token/s)"
_SUM_OFF = 0.5
"""Percent by which the phases of a whole profile line may miss 100, by rounding."""

BEGINNINGS = ("Decode batch", "Prefill batch", "ServerArgs(", " profile over ", "ready to roll", "graph end")
"""What a line of ours contains."""


def read(head: Head, text: str) -> Record | None:
    """The record that a message is; None if it is cut short or none of ours."""
    if (batch := _BATCH.search(text)) is not None:
        fields = _fields(text[batch.end() :])
        return _decode(head, fields) if batch[1] == "Decode" else _prefill(head, fields)
    if "ServerArgs(" in text:
        return _arguments(head, text)
    if (profile := _PROFILE.search(text)) is not None:
        return _profile(head, int(profile[1]), text[profile.end() :])
    if "The server is fired up and ready to roll" in text:
        return Ready(head=head)
    capture = _CAPTURE.search(text)
    return None if capture is None else Capture(head=head, what=capture[1].lower())


def _fields(text: str) -> dict[str, str]:
    return dict(_FIELD.findall(text))


def _decode(head: Head, fields: dict[str, str]) -> Decode | None:
    """The queue stands after the throughput, so a line that has it was not cut within the throughput.

    One that tells of acceptance in a way that cannot be read is none: it would be taken for plain decoding.
    """
    length = _first(fields, _LENGTHS)
    if _decimal(length) is None and any("accept" in name for name in fields):
        return None
    running, rate, queued = (fields.get(name, "") for name in ("#running-req", _RATE, "#queue-req"))
    if not (_WHOLE.fullmatch(running) and _DECIMAL.fullmatch(rate) and _WHOLE.fullmatch(queued)):
        return None
    return Decode(
        head=head,
        running=int(running),
        tokens=_whole(_first(fields, _TOKENS)),
        accept_length=_decimal(length),
        accept_rate=_decimal(_first(fields, _RATES)),
        graph={"True": True, "False": False}.get(_first(fields, _GRAPHS)),
        tok_s=float(rate),
    )


def _first(fields: dict[str, str], names: tuple[str, ...]) -> str:
    """What a line calls by one of these names; "" where it has none."""
    return next((fields[name] for name in names if name in fields), "")


def _prefill(head: Head, fields: dict[str, str]) -> Prefill | None:
    return Prefill(head=head) if "#queue-req" in fields else None


def _arguments(head: Head, text: str) -> Settings | None:
    inside = text[text.index("ServerArgs(") + len("ServerArgs(") :]
    values = read_arguments(inside[:-1]) if inside.endswith(")") else None
    return None if not values else Settings(head=head, engine="sglang", values=values, resolved=False)


def _profile(head: Head, cycles: int, text: str) -> Profile | None:
    """Every phase, or nothing: percents that do not add up to 100 say that phases are missing."""
    found: list[tuple[str, str, str]] = _PHASE.findall(text)
    percent = sum(float(share) for _, _, share in found)
    phases = {name.lower(): float(ms) for name, ms, _ in found}
    whole = len(found) == text.count("|") + 1 and abs(percent - 100.0) <= _SUM_OFF
    if not whole or not cycles or not sum(phases.values()):
        return None
    return Profile(head=head, cycles=cycles, phases=phases)


def _whole(text: str) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) else None


def _decimal(text: str) -> float | None:
    return float(text) if _DECIMAL.fullmatch(text) else None
