"""The machine a figure was taken on. A figure without it cannot be compared with another.

Every part is its own small function from nothing to plain data, so that more can be added beside them.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from outpace.version import __version__

PACKAGE = Path(__file__).parents[1]
_GPU_FIELDS = (
    "name",
    "driver_version",
    "memory.total",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.limit",
    "temperature.gpu",
    "clocks_throttle_reasons.active",
)


def machine() -> dict[str, Any]:
    """Everything about this machine and this process that may move a figure, as plain data for JSON."""
    return {**cpu(), **software(), "gpus": gpus()}


def cpu() -> dict[str, Any]:
    """Processor, the cores this process may use, memory in GiB, and how busy the machine was."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": _memory_gib(),
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def software() -> dict[str, Any]:
    """Versions, threads, and the commit of this code where it runs from a checkout."""
    return {
        "os": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "outpace": __version__,
        "commit": commit(),
    }


def gpus() -> list[dict[str, str]]:
    """One entry a GPU, in nvidia-smi's own words and units; empty where there is none."""
    if not torch.cuda.is_available():
        return []
    listed = _run("nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader")
    if listed is None:
        return [{"name": torch.cuda.get_device_name(i)} for i in range(torch.cuda.device_count())]
    return [
        dict(zip(_GPU_FIELDS, (cell.strip() for cell in line.split(",")), strict=False)) for line in listed.splitlines()
    ]


def commit() -> str | None:
    """Short id of the checkout this package lies in, with "+changes" if its files differ; None outside of one."""
    root = _run("git", "-C", str(PACKAGE), "rev-parse", "--show-toplevel")
    if root is None or Path(root, "src", "outpace").resolve() != PACKAGE.resolve():
        return None
    head = _run("git", "-C", root, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return f"{head}+changes" if _run("git", "-C", root, "status", "--porcelain", "src") else head


def one_line(facts: dict[str, Any]) -> str:
    """The machine for people."""
    what = facts["gpus"][0]["name"] if facts["gpus"] else f"{facts['cpu']}, {facts['cores']} cores"
    return f"{what} · torch {facts['torch']}, {facts['threads']} threads · Python {facts['python']}"


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return _run("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _run(program: str, *args: str) -> str | None:
    """What a program printed, or None if it is missing or failed."""
    path = shutil.which(program)
    if path is None:
        return None
    done = subprocess.run([path, *args], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
