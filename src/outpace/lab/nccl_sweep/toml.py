"""The best set as a TOML file that `outpace serve --config` takes."""

from __future__ import annotations

import json
from math import exp, isfinite

from outpace.lab.nccl_sweep.settings import as_list, spelled
from outpace.lab.nccl_sweep.sweep import Verdict


def as_toml(verdict: Verdict, size: int, about: str) -> str:
    """`tensor_parallel` and `nccl`, and what they rest on as comments.

    Args:
        verdict: of the sweep.
        size: ranks.
        about: what was measured, in a line.
    """
    lines = [f"# {about}", f"# {summary(verdict)}", f"tensor_parallel = {size}"]
    settings = [json.dumps(text) for text in as_list(verdict.best)]  # a JSON string of ASCII is a TOML string
    return "\n".join([*lines, f"nccl = [{', '.join(settings)}]", ""])


def summary(verdict: Verdict) -> str:
    """The verdict in a sentence."""
    at = verdict.ratio
    if not verdict.candidate and len(verdict.measured) == 1:
        each_s = verdict.measured[0].seconds
        return f"there was time for the default alone, {each_s:.0f} s a setting: it stays; raise --time-limit"
    if not verdict.candidate:
        return "no setting was faster than the default by more than its noise"
    name = spelled(verdict.candidate)
    if at is None:
        return f"{name} looked fastest, and there was no time to make sure: the default stays"
    span = f"95%: {exp(at.low):.3f} … {exp(at.high):.3f}" if isfinite(at.low) else "too few rounds for an interval"
    ratio = f"{exp(at.center):.3f} of the default's time ({span})"
    kept = "" if verdict.best else ", which is not sure to be faster: the default stays"
    return f"{name} takes {ratio}{kept}"
