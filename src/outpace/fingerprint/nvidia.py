"""GPUs as nvidia-smi tells of them: state, throttle reasons by name, PCIe, NVLink and who is wired to whom.

Drivers differ in what they know, so every field may be missing; a field that a driver refuses is left out and the
others are asked for again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from outpace.fingerprint.programs import WAIT_S, ask_all, asked

PROGRAM = "nvidia-smi"

FIELDS = (
    "name",
    "uuid",
    "driver_version",
    "vbios_version",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "pstate",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "clocks.max.mem",
    "clocks.applications.graphics",
    "power.draw",
    "power.limit",
    "power.default_limit",
    "temperature.gpu",
    "clocks_throttle_reasons.active",
    "persistence_mode",
    "compute_mode",
    "ecc.mode.current",
    "mig.mode.current",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
)
REASONS = "clocks_throttle_reasons.active"
RENAMED = {REASONS: "clocks_event_reasons.active"}
"""What newer drivers call a field; tried where the old name is refused."""
MOST_REFUSALS = 8

THROTTLES = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
    0x100: "display clocks",
}
"""Bits of NVML's clocks event reasons (nvml.h, nvmlClocksEventReason…)."""

_UNKNOWN = re.compile(
    r"\[?(n/a|not supported|unknown error|gpu is lost|insufficient permissions|requested .*)\]?", re.I
)
_REFUSED = re.compile(r'Field "([^"]+)" is not a valid field')
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def gpus(fields: Sequence[str] = FIELDS, *, wait_s: float = WAIT_S) -> list[dict[str, Any]]:
    """One entry a GPU, by nvidia-smi's names and in its units; empty where there is none, or no nvidia-smi.

    Args:
        fields: of `FIELDS`; `REASONS` comes as "throttle_reasons", a list of names.
        wait_s: for each answer of nvidia-smi.
    """
    wanted = {field: field for field in fields}
    for _ in range(MOST_REFUSALS):
        done = asked(PROGRAM, f"--query-gpu={','.join(wanted.values())}", "--format=csv,noheader", wait_s=wait_s)
        if done is None:
            return []
        code, printed = done
        if code == 0:
            return read_gpus(printed, tuple(wanted))
        refused = _REFUSED.search(printed)
        field = next((name for name, said in wanted.items() if refused and said == refused[1]), None)
        if field is None:
            return []
        if field in RENAMED and wanted[field] == field:
            wanted[field] = RENAMED[field]
        else:
            del wanted[field]
    return []


def read_gpus(printed: str, fields: tuple[str, ...] = FIELDS) -> list[dict[str, Any]]:
    """From nvidia-smi's lines; what it does not know is left out, and throttle reasons get their names."""
    found = []
    for line in printed.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(fields):
            continue
        gpu: dict[str, Any] = {
            field: cell for field, cell in zip(fields, cells, strict=True) if cell and not _UNKNOWN.fullmatch(cell)
        }
        if REASONS in gpu:
            gpu["throttle_reasons"] = throttle_reasons(gpu.pop(REASONS))
        found.append(gpu)
    return found


def throttle_reasons(mask: str) -> list[str]:
    """Names of the bits of a mask such as 0x0000000000000044; a bit without a name is shown as it is."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return [f"not understood: {mask:.40}"]
    named = [name for bit, name in THROTTLES.items() if bits & bit]
    other = bits & ~sum(THROTTLES)
    return named + ([f"unknown bits {other:#x}"] if other else [])


def wiring() -> dict[str, Any]:
    """The driver's CUDA version, the topology and the NVLinks; empty parts are left out."""
    version, topology, links = ask_all((PROGRAM, "--version"), (PROGRAM, "topo", "-m"), (PROGRAM, "nvlink", "-s"))
    parts = {
        "cuda_driver": read_cuda(version or ""),
        "topology": read_topology(topology or ""),
        "nvlink": read_nvlink(links or ""),
    }
    return {name: part for name, part in parts.items() if part}


def read_cuda(printed: str) -> str | None:
    """The newest CUDA that the driver serves, from `nvidia-smi --version`."""
    found = re.search(r"CUDA (?:\w+ )?version\s*:\s*([\d.]+)", printed, re.IGNORECASE)
    return found[1] if found else None


def read_topology(printed: str) -> dict[str, Any]:
    """From `nvidia-smi topo -m`: the devices, how each GPU reaches them, and the cores near each GPU."""
    lines = [_COLOUR.sub("", line) for line in printed.splitlines()]
    header = next((line.split() for line in lines if line.split()[:1] == ["GPU0"] and "X" not in line.split()), [])
    devices = []
    for word in header:
        if not re.fullmatch(r"GPU\d+|NIC\d+|\w+_\d+", word):
            break
        devices.append(word)
    links: dict[str, str] = {}
    cores: dict[str, str] = {}
    for line in lines:
        name, *cells = line.split() or [""]
        if re.fullmatch(r"GPU\d+", name) and name not in links and len(cells) >= len(devices) and "X" in cells:
            links[name] = " ".join(cells[: len(devices)])
            behind = cells[len(devices) :]
            if behind and re.fullmatch(r"[\d,-]+", behind[0]):
                cores[name] = behind[0]
    return {"devices": devices, "links": links, "near_cores": cores} if links else {}


def read_nvlink(printed: str) -> dict[str, str]:
    """From `nvidia-smi nvlink -s`: for each GPU how many links are up, at what speed, and how many are not."""
    found: dict[str, str] = {}
    gpu, down = "", 0
    speeds: list[str] = []
    for line in [*printed.splitlines(), "GPU : end"]:
        if head := re.match(r"\s*GPU\s*(\d*)\s*:", line):
            if gpu and (speeds or down):
                rates = "/".join(sorted(set(speeds))) or "none"
                found[gpu] = f"{len(speeds)} links up ({rates})" + (f", {down} down" if down else "")
            gpu, speeds, down = f"GPU{head[1]}" if head[1] else "", [], 0
        elif link := re.match(r"\s*Link\s+\d+\s*:\s*(.+?)\s*$", line):
            if re.match(r"[\d.]+\s*GB/s", link[1]):
                speeds.append(link[1])
            else:
                down += 1
    return found
