"""Asks programs of the machine what they know. A missing, failing or hanging one is no error: it tells nothing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

WAIT_S = 10.0


def ask(program: str, *args: str, wait_s: float = WAIT_S) -> str | None:
    """What it printed, or None."""
    done = asked(program, *args, wait_s=wait_s)
    return done[1].strip() if done is not None and done[0] == 0 else None


def asked(program: str, *args: str, wait_s: float = WAIT_S) -> tuple[int, str] | None:
    """Its exit code and what it printed; None if it is missing or took too long."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run([path, *args], capture_output=True, text=True, timeout=wait_s, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.returncode, done.stdout


def ask_all(*commands: Sequence[str]) -> list[str | None]:
    """Several at once: each of nvidia-smi's calls takes a good part of a second on a machine of eight GPUs."""
    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(lambda command: ask(*command), commands))
