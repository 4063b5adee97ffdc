"""One fingerprint: every part is its own small function from nothing to plain data, so that more can be added.

Torch is not imported for it: a client that only asks questions takes its fingerprint too, in a fraction of a second.
Where torch is loaded already, what it decided is told.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outpace.fingerprint import environment, nvidia
from outpace.fingerprint.programs import ask
from outpace.version import __version__
from outpace.wording import count_of

PACKAGE_FOLDER = Path(__file__).parents[1]
PACKAGES = {"triton": ("triton",), "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")}
AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def machine(pids: Sequence[int] = ()) -> dict[str, Any]:
    """Everything about this machine and its processes that may move a figure, as plain data for JSON.

    Args:
        pids: processes whose environment is to be told too, with all that they started.
    """
    with ThreadPoolExecutor(2) as pool:  # these two wait for other programs
        gpus, wiring = pool.submit(_gpus), pool.submit(nvidia.wiring)
        here = {"taken_at": datetime.now(UTC).isoformat(timespec="seconds"), **cpu(), **software()}
        return {
            **here,
            "gpus": gpus.result(),
            **wiring.result(),
            "environment": environment.own(),
            "processes": environment.of_processes(pids),
        }


def cpu() -> dict[str, Any]:
    """Processor, the cores this process may use, memory in GiB, how busy the machine was, how long it has run."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "instructions": _instructions(),
        "memory_gib": _memory_gib(),
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "uptime_s": _uptime_s(),
    }


def software() -> dict[str, Any]:
    """Versions, threads, and the commit of this code where it runs from a checkout."""
    torch = sys.modules.get("torch")
    return {
        "os": platform.platform(terse=True),
        "python": platform.python_version(),
        **_torch_build(),
        **{name: _installed(packages) for name, packages in PACKAGES.items()},
        "threads": torch.get_num_threads() if torch is not None else None,
        "outpace": __version__,
        "commit": commit(),
    }


def commit() -> str | None:
    """Short id of the checkout this package lies in, with "+changes" if its files differ; None outside of one."""
    package = PACKAGE_FOLDER
    root = ask("git", "-C", str(package), "rev-parse", "--show-toplevel")
    if root is None or Path(root, "src", "outpace").resolve() != package.resolve():
        return None
    head = ask("git", "-C", root, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return f"{head}+changes" if ask("git", "-C", root, "status", "--porcelain", "src") else head


def one_line(facts: dict[str, Any]) -> str:
    """The machine for people."""
    gpus = facts["gpus"]
    what = gpus[0]["name"] if gpus else f"{facts['cpu']}, {count_of(facts['cores'], 'core')}"
    if len(gpus) > 1:
        what = f"{len(gpus)} × {what}"
    threads = "" if facts["threads"] is None else f", {count_of(facts['threads'], 'thread')}"
    return f"{what} · torch {facts['torch']}{threads} · Python {facts['python']}"


def _gpus() -> list[dict[str, Any]]:
    """By nvidia-smi; where it is missing, what a loaded torch sees."""
    torch = sys.modules.get("torch")
    found = nvidia.gpus()
    if found or torch is None or not torch.cuda.is_available():
        return found
    return [{"name": torch.cuda.get_device_name(i)} for i in range(torch.cuda.device_count())]


def _torch_build() -> dict[str, Any]:
    """Torch's version and the CUDA that it was built for, from its file that holds nothing else."""
    spec = find_spec("torch")
    path = Path(spec.origin).with_name("version.py") if spec is not None and spec.origin else None
    text = path.read_text(encoding="utf-8") if path is not None and path.is_file() else ""

    def value(name: str) -> str | None:
        found = re.search(rf"^{name}\b[^=\n]*=\s*'([^']*)'", text, re.MULTILINE)
        return found[1] if found else None

    return {"torch": value("__version__"), "cuda": value("cuda")}


def _installed(packages: Sequence[str]) -> str | None:
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def _cpuinfo(name: str) -> str | None:
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return None


def _cpu_model() -> str:
    return (
        _cpuinfo("model name")
        or ask("sysctl", "-n", "machdep.cpu.brand_string")
        or platform.processor()
        or platform.machine()
    )


def _instructions() -> str | None:
    """In torch's words; None where neither torch nor the system tells."""
    if (torch := sys.modules.get("torch")) is not None:
        return str(torch.backends.cpu.get_cpu_capability())
    flags = set((_cpuinfo("flags") or "").split())
    if not flags:
        return None
    return "AVX512" if flags >= AVX512 else "AVX2" if "avx2" in flags else "DEFAULT"


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _uptime_s() -> int | None:
    """Of the machine since it was started."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return None if clock is None else int(time.clock_gettime(clock))
