"""The environment variables that move speed, as each process was started with them: NCCL's, CUDA's, torch's, threads'.

Only names that begin as listed here are read, and none of them that may hold a secret. On Linux the environment of
another process is what it was started with: what it has changed since (`os.environ[…] = …`) is not seen from outside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

PREFIXES = (
    *("NCCL_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NVSHMEM_", "UCX_", "GLOO_"),
    *("TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TRITON_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("VLLM_", "SGLANG_", "SGL_", "OUTPACE_"),
)
_SECRET = re.compile(r"KEY|SECRET|PASS|CREDENTIAL|AUTH|TOKEN(?!S|IZER)", re.IGNORECASE)
_SIGNED = re.compile(r"://[^/\s]*@")
"""A URL with somebody's password in it."""
LONGEST = 400
MOST_PROCESSES = 64
PROC = Path("/proc")


def telling(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that move speed and hold no secret, by name."""
    return {
        name: value[:LONGEST]
        for name, value in sorted(variables.items())
        if name.startswith(PREFIXES) and not _SECRET.search(name) and not _SIGNED.search(value)
    }


def own() -> dict[str, str]:
    """Of this process, as it is now."""
    return telling(os.environ)


def of_processes(pids: Sequence[int], proc: Path = PROC) -> list[dict[str, Any]]:
    """Of processes and all that they started; one that may not be read is told as such.

    Args:
        pids: of servers; their workers are found.
        proc: where processes are listed.
    """
    return [_of_process(pid, proc) for pid in _with_children(pids, proc)[:MOST_PROCESSES]]


def _of_process(pid: int, proc: Path) -> dict[str, Any]:
    try:
        raw = (proc / str(pid) / "environ").read_bytes()
        name = (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        why = "there is no such process" if proc.is_dir() else "this system does not list processes"
        return {"pid": pid, "unknown": why}
    except OSError as error:
        return {"pid": pid, "unknown": f"it may not be read: {error.strerror}"}
    pairs = (entry.decode(errors="replace").partition("=") for entry in raw.split(b"\0") if entry)
    return {"pid": pid, "name": name, "environment": telling({key: value for key, _, value in pairs})}


def _with_children(pids: Sequence[int], proc: Path) -> list[int]:
    """In the order given, each followed by its descendants."""
    if not pids:
        return []
    children: dict[int, list[int]] = {}
    for pid, parent in _parents(proc):
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = list(dict.fromkeys(pids))
    while waiting:
        pid = waiting.pop(0)
        if pid not in found:
            found.append(pid)
            waiting[:0] = sorted(children.get(pid, []))
    return found


def _parents(proc: Path) -> Iterable[tuple[int, int]]:
    for path in proc.glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold anything; the parent is the second word behind it.
            words = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            yield int(path.parent.name), int(words[1])
        except (OSError, ValueError, IndexError):
            continue
