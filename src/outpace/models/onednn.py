"""What oneDNN multiplies by on this machine."""

from __future__ import annotations

import torch
from torch import Tensor


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN multiplies by this weight on this machine (bf16 and fp16 need instructions for them)."""
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    match weight.dtype:
        case torch.float32:
            return True
        case torch.bfloat16:
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        case torch.float16:
            return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
        case _:
            return False
