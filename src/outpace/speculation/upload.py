"""Host numbers on their way to the device, without the host waiting for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def upload(values: Any, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Host numbers as a tensor on the device; to a GPU through pinned memory, so that the host does not wait."""
    tensor = torch.tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
