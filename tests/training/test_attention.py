"""The attention of training-time test against the same thing written out in float64, gradients included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outpace.training.attention import CpuKernel, Kernel, PlainKernel, StepAttend, choose_kernel


def dense(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """All [B, T, N, D] with as many KV heads as query heads."""
    q, *rest = (x.transpose(1, 2) for x in (q, *keys, *values))
    keys, values = rest[: len(keys)], rest[len(keys) :]
    T, scale = q.shape[2], q.shape[3] ** -0.5
    causal = (q @ keys[0].mT * scale).masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
    diagonal = [(q * key).sum(-1, keepdim=True) * scale for key in keys[1:]]
    weights = torch.cat((causal, *diagonal), -1).softmax(-1)
    out = weights[..., :T] @ values[0]
    for place, value in enumerate(values[1:]):
        out = out + weights[..., T + place, None] * value
    return out.transpose(1, 2)


@pytest.mark.parametrize("kernel", [CpuKernel(), PlainKernel()], ids=["cpu", "plain"])
@pytest.mark.parametrize("num_steps", [1, 2, 5])
@pytest.mark.parametrize("shape", [(2, 70, 4, 2, 8), (1, 1, 3, 1, 16), (3, 5, 2, 2, 64)])
def test_out_and_gradients(kernel: Kernel, num_steps: int, shape: tuple[int, ...]) -> None:
    B, T, N, num_kv_heads, D = shape
    exact = [
        torch.randn(B, T, n, D, dtype=torch.float64) for _ in range(num_steps) for n in (N, num_kv_heads, num_kv_heads)
    ]
    ours = [x.float().requires_grad_() for x in exact]
    exact = [x.requires_grad_() for x in exact]
    grads = [torch.randn(B, T, N, D, dtype=torch.float64) for _ in range(num_steps)]
    attend = StepAttend(kernel)
    loss, expected = torch.zeros(()), torch.zeros((), dtype=torch.float64)
    for step in range(num_steps):
        out = attend(0, *ours[3 * step : 3 * step + 3])
        loss = loss + (out * grads[step].float()).sum()
        keys, values = (
            [exact[3 * j + part].repeat_interleave(N // num_kv_heads, 2) for j in range(step + 1)] for part in (1, 2)
        )
        reference = dense(exact[3 * step], keys, values)
        assert (out - reference).norm() < 1e-5 * reference.norm()
        expected = expected + (reference * grads[step]).sum()
    for got, want in zip(torch.autograd.grad(loss, ours), torch.autograd.grad(expected, exact), strict=True):
        assert (got - want).norm() < 1e-4 * want.norm() + 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_is_tried_before_it_is_used(dtype: torch.dtype) -> None:
    assert isinstance(choose_kernel(torch.device("cpu"), dtype, 64), CpuKernel | PlainKernel)


class _WrongKernel(PlainKernel):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, tuple[object, ...]]:
        out, lse, context = super().forward(q, k, v)
        return out, lse + 0.3, context


def test_a_wrong_kernel_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outpace.training.attention.CpuKernel", _WrongKernel)
    assert type(choose_kernel(torch.device("cpu"), torch.float32, 64)) is PlainKernel


@pytest.mark.gpu
def test_flash_attention_gives_right_gradients() -> None:
    kernel = choose_kernel(torch.device("cuda"), torch.bfloat16, 64)
    assert type(kernel).__name__ == "FlashKernel"
