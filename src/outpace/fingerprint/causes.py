"""Which fields of a fingerprint move speed, how likely each is the cause of a change, and which only ever flicker.

A rule is a pattern over dotted names, the words that say why, and a rank: 1 is looked at first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

TEMPERATURE_C = 5.0
CLOCK_PART = 0.02
LOAD_PART = 0.5
"""Of the cores: what a load may differ by without a word."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`is_noise` judges two values; None takes every change for real."""

    pattern: str
    rank: int
    why: str
    is_noise: Callable[[str, str, float], bool] | None = None
    """(a, b, cores)."""


def _near(limit: float) -> Callable[[str, str, float], bool]:
    def judge(a: str, b: str, cores: float) -> bool:
        first, second = number(a), number(b)
        return first is not None and second is not None and abs(first - second) <= limit

    return judge


def _near_part(part: float) -> Callable[[str, str, float], bool]:
    def judge(a: str, b: str, cores: float) -> bool:
        first, second = number(a), number(b)
        return first is not None and second is not None and abs(first - second) <= part * max(first, second)

    return judge


def _light(a: str, b: str, cores: float) -> bool:
    first, second = number(a), number(b)
    return first is not None and second is not None and abs(first - second) <= LOAD_PART * cores


def _always(a: str, b: str, cores: float) -> bool:
    return True


def _ordinary_throttle(a: str, b: str, cores: float) -> bool:
    """Idle, a power cap or set clocks: a GPU that works and one that waits differ so."""
    return not any(word in f"{a} {b}" for word in ("thermal", "hardware", "brake", "unknown"))


def number(text: str) -> float | None:
    """At the beginning of "1980 MHz"."""
    found = re.match(r"-?\d+(\.\d+)?", text)
    return float(found[0]) if found else None


RULES = (
    Rule(r"gpus\.\d+\.throttle_reasons", 1, "a throttled GPU is slower, whatever runs on it", _ordinary_throttle),
    Rule(r"gpus\.count|gpus\.\d+\.name", 1, "another GPU"),
    Rule(r"gpus\.\d+\.(power\.(default_)?limit|clocks\.(applications|max)\..*)", 1, "it caps the clocks"),
    Rule(r"gpus\.\d+\.mig\.mode.*", 1, "a part of a GPU is another GPU"),
    Rule(r"commit|outpace|settings\.(.*\.)?(server_version|version|commit|outpace)", 2, "other code"),
    Rule(r"settings\.(.*\.)?(control\..*|.*time.*|port|url)", 9, "is found anew at every start", _always),
    Rule(r"settings\.(.*\.)?(kv_bytes|num_pages)", 5, "follows the memory that was free"),
    Rule(r"settings\..*", 2, "a setting was resolved otherwise"),
    Rule(r"environment\.(OMP|MKL|KMP|GOMP|OPENBLAS)_.*|threads", 2, "threads that wait for each other, or too few"),
    Rule(r"(environment|processes)\..*", 2, "libraries read it when they start"),
    Rule(r"gpus\.\d+\.pcie\.link\.(width\..*|gen\.max)", 2, "the bus carries more or less"),
    Rule(r"(topology|nvlink)\..*", 2, "all-reduces take another way"),
    Rule(r"gpus\.\d+\.clocks\.(sm|mem)", 3, "the clock at that moment", _near_part(CLOCK_PART)),
    Rule(r"gpus\.\d+\.(ecc|persistence|compute).*", 3, "a mode of the GPU"),
    Rule(r"gpus\.\d+\.(driver_version|vbios_version)|cuda_driver", 3, "another driver"),
    Rule(r"torch|cuda|nccl|triton", 3, "another library, with other kernels"),
    Rule(r"cpu|cores|instructions|memory_gib", 3, "another machine, or another part of it"),
    Rule(r"load_1min", 4, "something else took the cores", _light),
    Rule(r"gpus\.\d+\.temperature\.gpu", 4, "a warmer GPU clocks lower", _near(TEMPERATURE_C)),
    Rule(r"gpus\.\d+\.uuid", 5, "another card of the same kind"),
    Rule(r"os|python", 5, "another system"),
    Rule(
        r"gpus\.\d+\.(pstate|power\.draw|utilization.*|memory\.used|pcie\.link\.gen\.current)",
        9,
        "moves with the work",
        _always,
    ),
    Rule(r"taken_at|uptime_s", 9, "time passed", _always),
)
"""The first that matches a whole name counts."""
