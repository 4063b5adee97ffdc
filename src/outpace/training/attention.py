"""The attention of training-time test: a causal part that is shared by all steps, plus one key per step.

In inference the drafter, j tokens into a draft that began after position t, sees the entries of true tokens 0 … t and
its own j + 1 newest ones. In training, step j runs all t at once: the query of anchor t sees the keys of step 0 up to
t and, of each step 1 … j, the key at t alone. (The first public trainers also drop the j newest keys of step 0, which
inference does not: github.com/SafeAILab/EAGLE/issues/247; the newer ones keep them, as here.)

No [T, T] matrix is kept. The causal part comes from a fused kernel with its log-sum-exp, the diagonal keys are added
by rescaling, and the backward pass hands the *joint* output and log-sum-exp back to the kernel: its gradient formula
needs nothing else, so the result is exact.

Legend: B rows, T positions a row, N heads, D head dimension, J diagonal steps.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Kernel(Protocol):
    """Causal attention that gives its log-sum-exp away, and its gradient; all [B, N, T, D], lse [B, N, T] float32."""

    name: str
    """For the record of a run."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, tuple[Any, ...]]: ...

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, context: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor, Tensor]: ...


class CpuKernel:
    """PyTorch's fused attention for CPUs."""

    name = "PyTorch's fused attention for CPUs"

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        return out, lse, ()

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, context: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, True
        )
        return grads


class FlashKernel:
    """FlashAttention 2 as PyTorch carries it: CUDA, bfloat16 or float16."""

    name = "FlashAttention 2"

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
        out, lse, *context = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
        return out, lse, tuple(context[:6])

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, context: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        cum_q, cum_k, max_q, max_k, seed, offset = context
        grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, 0.0, True, seed, offset
        )
        return grads


class PlainKernel:
    """Written out with [T, T] scores: any device and dtype, the reference of the others, and what is left to others."""

    name = "attention written out"

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
        scores = _causal_scores(q, k)
        lse = scores.logsumexp(-1)
        return ((scores - lse[..., None]).exp() @ v.float()).to(q.dtype), lse, ()

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, context: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights = (_causal_scores(q, k) - lse[..., None]).exp()
        grad, out = grad.float(), out.float()
        grad_scores = weights * (grad @ v.float().mT - (grad * out).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return (
            (grad_scores @ k.float()).to(q.dtype),
            (grad_scores.mT @ q.float()).to(k.dtype),
            (weights.mT @ grad).to(v.dtype),
        )


def _causal_scores(q: Tensor, k: Tensor) -> Tensor:
    T = q.shape[2]
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    scores: Tensor = (q.float() @ k.float().mT * q.shape[-1] ** -0.5).masked_fill(future, -torch.inf)
    return scores


def choose_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> Kernel:
    """The fastest kernel that gives right gradients here: tried once on random data against the plain one."""
    kernel: Kernel = FlashKernel() if device.type == "cuda" else CpuKernel()
    return kernel if _agrees(kernel, device, dtype, head_dim) else PlainKernel()


def _agrees(kernel: Kernel, device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    random = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 2, 128, head_dim, generator=random).to(device, dtype) for _ in range(8)]
    q, k, v, grad, *diagonals = tensors
    results = []
    for candidate in (kernel, PlainKernel()):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, *diagonals)]
        try:
            out = _Attention.apply(candidate, *leaves)  # type: ignore[no-untyped-call]
            results.append([out, *torch.autograd.grad(out, leaves, grad)])
        except (RuntimeError, TypeError):
            return False
    return all(_close(ours, plain) for ours, plain in zip(*results, strict=True))


def _close(x: Tensor, y: Tensor) -> bool:
    return bool((x.float() - y.float()).norm() <= 0.02 * y.float().norm())


class _Attention(torch.autograd.Function):
    """apply(kernel, q, k, v, *diagonal keys, *diagonal values) → out, all [B, N, T, D]."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, *diagonals: Tensor) -> Tensor:
        J = len(diagonals) // 2
        out, lse, context = kernel.forward(q, k, v)
        if J:
            scores_JBNT = _diagonal_scores(q, diagonals[:J])
            joint = torch.logaddexp(lse, scores_JBNT.logsumexp(0))
            mixed = out.float() * (lse - joint).exp()[..., None]
            for score, value in zip(scores_JBNT, diagonals[J:], strict=True):
                mixed.addcmul_((score - joint).exp()[..., None], value.float())
            out, lse = mixed.to(q.dtype), joint
        ctx.kernel, ctx.context = kernel, context
        ctx.save_for_backward(q, k, v, out, lse, *diagonals)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, *diagonals = ctx.saved_tensors
        J = len(diagonals) // 2
        grad_q, grad_k, grad_v = ctx.kernel.backward(grad, q, k, v, out, lse, ctx.context)
        if not J:
            return None, grad_q, grad_k, grad_v
        scale = q.shape[-1] ** -0.5
        weights_JBNT = (_diagonal_scores(q, diagonals[:J]) - lse).exp()
        through_out = (grad.float() * out.float()).sum(-1)
        grad_keys, grad_values = [], []
        for weight, key, value in zip(weights_JBNT, diagonals[:J], diagonals[J:], strict=True):
            grad_score = (weight * ((grad.float() * value.float()).sum(-1) - through_out) * scale)[..., None].to(
                q.dtype
            )
            grad_q = torch.addcmul(grad_q, grad_score, key)
            grad_keys.append(grad_score * q)
            grad_values.append(weight[..., None].to(q.dtype) * grad)
        return None, grad_q, grad_k, grad_v, *grad_keys, *grad_values


def _diagonal_scores(q: Tensor, keys: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    scale = q.shape[-1] ** -0.5
    scores: Tensor = torch.stack([(q.float() * key.float()).sum(-1) for key in keys]) * scale
    return scores


class StepAttend:
    """`attend` for one batch of training-time test: call number j of the drafter is step j.

    The drafter's own forward does the rest, so training runs the very function that inference runs.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, layer: int, q_BTND: Tensor, k_BTND: Tensor, v_BTND: Tensor) -> Tensor:
        assert layer == 0, "an EAGLE-3 drafter has one layer"
        group = q_BTND.shape[2] // k_BTND.shape[2]
        self.keys.append(k_BTND.transpose(1, 2).repeat_interleave(group, 1))
        self.values.append(v_BTND.transpose(1, 2).repeat_interleave(group, 1))
        out: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
            self.kernel,
            q_BTND.transpose(1, 2),
            self.keys[0],
            self.values[0],
            *self.keys[1:],
            *self.values[1:],
        )
        return out.transpose(1, 2)
