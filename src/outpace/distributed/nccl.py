"""NCCL's settings: asked for in the config, set before NCCL starts in any process, read back in every one.

NCCL reads its environment once, when a process first uses it, and never says what it took. So settings are put into
the environment that a worker is started with, and what each rank reports is what its process sees.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence

from outpace.errors import ConfigError

_NAME = re.compile(r"(NCCL|TORCH_NCCL)_[A-Z0-9_]+")
_STARTED = "OUTPACE_NCCL_STARTED"
"""A process's number (those that it starts inherit the variable and do not mind), how often, and what NCCL read."""
_SEEN = re.compile(r"(NCCL|TORCH_NCCL|TORCH_SYMM_MEM|CUDA_VISIBLE)_[A-Z0-9_]+")


def parse(settings: Sequence[str]) -> dict[str, str]:
    """ "NCCL_PROTO=LL" and the like, by name.

    Raises:
        ConfigError: a text is no such setting, or one name has two values.
    """
    found: dict[str, str] = {}
    for text in settings:
        name, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not equals or not value or not _NAME.fullmatch(name):
            raise ConfigError(f"nccl holds {text!r:.80}; each setting must be NAME=VALUE, as NCCL_PROTO=LL")
        if found.get(name, value) != value:
            raise ConfigError(f"nccl gives {name} both {found[name]} and {value}; leave one out")
        found[name] = value
    return found


def apply(settings: dict[str, str]) -> None:
    """Puts settings into this process's environment, where NCCL finds them when it starts.

    Raises:
        ConfigError: it has started in this process, with others.
    """
    num, seen = _so_far()
    for name, value in settings.items() if num else ():
        if seen.get(name) != value:
            raise ConfigError(
                f"nccl asks for {name}={value}, but NCCL started in this process with {seen.get(name, 'none')}, and "
                "reads its settings once: make this LLM in a new process"
            )
    os.environ.update(settings)


def started() -> None:
    """Notes that a group was joined through NCCL in this process, and the settings that it read the first time."""
    num, seen = _so_far()
    os.environ[_STARTED] = f"{os.getpid()} {num + 1} {json.dumps(seen if num else observed())}"


def num_started() -> int:
    """Groups that this process has joined through NCCL, one after another."""
    return _so_far()[0]


def _so_far() -> tuple[int, dict[str, str]]:
    pid, _, rest = os.environ.get(_STARTED, "").partition(" ")
    if pid != str(os.getpid()):
        return 0, {}
    num, _, read = rest.partition(" ")
    seen: dict[str, str] = json.loads(read)
    return int(num), seen


def observed() -> dict[str, str]:
    """What of NCCL's settings this process sees."""
    return {name: value for name, value in sorted(os.environ.items()) if _SEEN.fullmatch(name)}
