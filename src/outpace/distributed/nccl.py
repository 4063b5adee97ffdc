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
_READ = "OUTPACE_NCCL_STARTED"
"""Number of a process, which those that it starts inherit and do not mind, and what its NCCL read."""
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
    pid, _, read = os.environ.get(_READ, "").partition(" ")
    if pid == str(os.getpid()):
        seen = json.loads(read)
        for name, value in settings.items():
            if seen.get(name) != value:
                raise ConfigError(
                    f"nccl asks for {name}={value}, but NCCL started in this process with {seen.get(name, 'none')}, "
                    "and reads its settings once: make this LLM in a new process"
                )
    os.environ.update(settings)


def started() -> None:
    """Notes with what settings NCCL has started in this process, for `apply`; the first time counts."""
    if os.environ.get(_READ, "").partition(" ")[0] != str(os.getpid()):
        os.environ[_READ] = f"{os.getpid()} {json.dumps(observed())}"


def observed() -> dict[str, str]:
    """What of NCCL's settings this process sees."""
    return {name: value for name, value in sorted(os.environ.items()) if _SEEN.fullmatch(name)}
