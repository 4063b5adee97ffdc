"""What is tried: values of NCCL's settings, one axis after another.

Source: NCCL's user guide, Environment Variables. Multicast (NVLS) is left as the environment has it.
"""

from __future__ import annotations

from collections.abc import Mapping

Setting = Mapping[str, str]
"""Environment variables by name; none is what the environment has."""

AXES: dict[str, tuple[Setting, ...]] = {
    "protocol": tuple({"NCCL_PROTO": value} for value in ("LL", "LL128", "Simple")),
    "algorithm": tuple({"NCCL_ALGO": value} for value in ("Ring", "Tree", "allreduce:tree")),
    "channels": (
        *({"NCCL_MAX_NCHANNELS": value} for value in ("1", "2", "4")),
        *({"NCCL_MIN_NCHANNELS": value} for value in ("8", "16", "32")),
    ),
    "P2P level": tuple({"NCCL_P2P_LEVEL": value} for value in ("LOC", "NVL", "PIX", "SYS")),
    "threads": tuple({"NCCL_NTHREADS": value} for value in ("128", "512")),
}
"""Those first that move small messages most: what time leaves out is at the end."""


def spelled(setting: Setting) -> str:
    """For people."""
    return " ".join(as_list(setting)) or "the default"


def as_list(setting: Setting) -> list[str]:
    """As `EngineConfig.nccl` takes them."""
    return [f"{name}={value}" for name, value in setting.items()]
