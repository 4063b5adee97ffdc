"""What nvidia-smi prints on machines of one and of eight GPUs, and a stand-in for the program that prints it.

The forms are those of outputs that people posted (drivers 535 to 580); the values are made up.
"""

from __future__ import annotations

from pathlib import Path

from outpace.fingerprint.nvidia import FIELDS

H200 = {
    "name": "NVIDIA H200",
    "uuid": "GPU-6d21a5cf-0b0c-5a1e-8c6e-2f8d4b1c9a10",
    "driver_version": "570.124.06",
    "vbios_version": "96.00.A5.00.01",
    "memory.total": "143771 MiB",
    "memory.used": "4 MiB",
    "utilization.gpu": "0 %",
    "pstate": "P0",
    "clocks.sm": "1980 MHz",
    "clocks.max.sm": "1980 MHz",
    "clocks.mem": "3201 MHz",
    "clocks.max.mem": "3201 MHz",
    "clocks.applications.graphics": "1980 MHz",
    "power.draw": "77.30 W",
    "power.limit": "700.00 W",
    "power.default_limit": "700.00 W",
    "temperature.gpu": "31",
    "clocks_throttle_reasons.active": "0x0000000000000001",
    "persistence_mode": "Enabled",
    "compute_mode": "Default",
    "ecc.mode.current": "Enabled",
    "mig.mode.current": "Disabled",
    "pcie.link.gen.current": "5",
    "pcie.link.gen.max": "5",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
}


def query(num: int = 1, **changes: str) -> str:
    """The lines of `--query-gpu` for so many GPUs."""
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return "".join(", ".join((H200 | named)[field] for field in FIELDS) + "\n" for _ in range(num))


TOPOLOGY_1 = (
    "\t\x1b[4mGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \t0-15\t0\t\tN/A\n\n"
    "Legend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
)


def _row(own: int) -> str:
    gpus = "\t".join(" X " if other == own else "NV18" for other in range(8))
    nics = "\t".join("PIX" if own // 4 == nic else "SYS" for nic in range(2))
    return f"GPU{own}\t{gpus}\t{nics}\t{'0-47,96-143' if own < 4 else '48-95,144-191'}\t{own // 4}\t\tN/A\n"


TOPOLOGY_8 = (
    "\t\x1b[4m" + "\t".join(f"GPU{n}" for n in range(8)) + "\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    "\x1b[0m\n" + "".join(map(_row, range(8))) + "NIC0\t" + "PIX\t" * 4 + "SYS\t" * 4 + " X \tSYS\t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  PIX  = Connection traversing at most a single PCIe bridge\n\nNIC Legend:\n\n"
    "  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
)
TOPOLOGY_PCIE = (
    "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tPHB\tSYS\t0-9,20-29\nGPU1\tPHB\t X \tSYS\t0-9,20-29\n"
    "mlx5_0\tSYS\tSYS\t X \t\n"
)


def nvlink(num: int, down: int = 0) -> str:
    """The lines of `nvlink -s`; the last GPU has some links down."""
    text = ""
    for gpu in range(num):
        text += f"GPU {gpu}: NVIDIA H200 (UUID: GPU-{gpu})\n"
        for link in range(18):
            dead = gpu == num - 1 and link < down
            text += f"\t Link {link}: {'<inactive>' if dead else '26.562 GB/s'}\n"
    return text


VERSION = (
    "NVIDIA-SMI version  : 570.124.06\nNVML version        : 570.124\nDRIVER version      : 570.124.06\n"
    "CUDA Version        : 12.8\n"
)


def install(folder: Path, *, gpus: str, topology: str = "", links: str = "", refuses: str = "") -> str:
    """A program of that name that prints this; returns the folder for PATH. `refuses` is a field that it never knew."""
    for name, text in {"gpus": gpus, "topology": topology, "links": links, "version": VERSION}.items():
        (folder / name).write_text(text)
    program = folder / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        f'refuses="{refuses}"\n'
        'case "$1" in\n'
        "  --version) cat " + str(folder / "version") + " ;;\n"
        "  topo) cat " + str(folder / "topology") + " ;;\n"
        "  nvlink) cat " + str(folder / "links") + " ;;\n"
        "  --query-gpu=*)\n"
        '    case "$1" in *"$refuses"*) if [ -n "$refuses" ]; then\n'
        '      echo "Field \\"$refuses\\" is not a valid field to query."; exit 2; fi ;; esac\n'
        "    cat " + str(folder / "gpus") + " ;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    return str(folder)
