"""Resolving "auto": where the model runs and in what number format."""

from __future__ import annotations

import torch

from outpace.errors import ConfigError
from outpace.models.onednn import can_pack
from outpace.wording import count_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """ "auto" is the first GPU, or the CPU where there is none.

    Raises:
        ConfigError: the device is unknown to torch or not on this machine.
    """
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device is {name!r}; it must be auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {name!r}; only cpu and cuda are served")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {name!r}; this machine shows {count_of(torch.cuda.device_count(), 'GPU')} to torch"
        )
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def enter(device: torch.device) -> torch.device:
    """Makes a GPU this thread's current one, of which kernels, graphs and events are; gives it back."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """ "auto" is bfloat16 where the device multiplies it natively, else float32.

    Raises:
        ConfigError: the name is none of float32, bfloat16, float16, auto.
    """
    if name != "auto":
        if name not in DTYPES:
            raise ConfigError(f"dtype is {name!r}; it must be auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    native = device.type == "cuda" or can_pack(torch.empty(0, dtype=torch.bfloat16))
    return torch.bfloat16 if native else torch.float32


def default_page_size(device: torch.device) -> int:
    """Tokens in a KV page: on a GPU what its kernel reads at a time, elsewhere small, for prefix reuse."""
    return 64 if device.type == "cuda" else 16


def default_prefill_chunk(device: torch.device) -> int:
    """Prompt tokens in one forward: enough to keep the device's arithmetic busy, and not more."""
    return 2048 if device.type == "cuda" else 512
