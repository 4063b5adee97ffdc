"""Training and inference run one forward: training-time test must give what drafting over the paged cache gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.tiny import VOCAB, tiny_drafter, tiny_target
from outpace.kernels.attention import PagedAttend
from outpace.kernels.kv import KVCache, slots_of
from outpace.models.drafter import Drafter
from outpace.training.attention import CpuKernel, Kernel, PlainKernel, StepAttend
from outpace.training.dataset import Batch
from outpace.training.teacher import Teacher, causal_attend
from outpace.training.ttt import UnrollConfig, run_test, unroll

PAGE, ROWS, LENGTH, STEPS = 4, 2, 14, 5


class PagedDrafter:
    """Drafting as the engine does it: entries of slot s join token s with the hidden state of s - 1, at rope s - 1."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.cache = KVCache.allocate(
            num_layers=1,
            num_pages=1 + ROWS * 8,
            page_size=PAGE,
            num_kv_heads=drafter.wiring.num_kv_heads,
            head_dim=drafter.wiring.head_dim,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        self.table_BP = torch.arange(1, 1 + ROWS * 8).view(ROWS, 8)

    def feed(self, tokens_BS: Tensor, hidden_BSH: Tensor, first: int) -> tuple[Tensor, Tensor]:
        positions = (first + torch.arange(tokens_BS.shape[1])).expand_as(tokens_BS)
        slots = slots_of(positions, self.table_BP, PAGE)
        attend = PagedAttend(
            self.cache, self.table_BP, torch.full((ROWS,), first), slots, (None,), torch.ones(ROWS, dtype=torch.int64)
        )
        return self.drafter(tokens_BS, hidden_BSH, positions - 1, attend)


def features(tokens_BT: Tensor) -> tuple[Drafter, Tensor]:
    target = tiny_target()
    drafter = tiny_drafter(target)
    positions = torch.arange(tokens_BT.shape[1]).expand_as(tokens_BT)
    _, found = target.model(tokens_BT, positions, causal_attend(target.config.windows), drafter.wiring.aux_boundaries)
    assert found is not None
    return drafter, found


@pytest.mark.parametrize("kernel", [CpuKernel(), PlainKernel()], ids=["cpu", "plain"])
@torch.no_grad()
def test_every_step_equals_drafting_with_a_cache(kernel: Kernel) -> None:
    tokens = torch.randint(VOCAB, (ROWS, LENGTH))
    drafter, features_BTF = features(tokens)
    steps = list(unroll(drafter, tokens, features_BTF, STEPS, StepAttend(kernel)))
    for anchor in range(LENGTH - STEPS - 1):
        paged = PagedDrafter(drafter)
        hidden, out = paged.feed(tokens[:, 1 : anchor + 2], drafter.fuse(features_BTF[:, : anchor + 1]), 1)
        for step in range(STEPS):
            torch.testing.assert_close(steps[step][0][:, anchor], hidden[:, -1], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(steps[step][1][:, anchor], out[:, -1], rtol=1e-5, atol=1e-5)
            next_token = anchor + 2 + step
            hidden, out = paged.feed(tokens[:, next_token : next_token + 1], hidden[:, -1:], next_token)


def lesson_of(num_steps: int = 3) -> tuple[Drafter, object, Teacher]:
    target = tiny_target()
    drafter = tiny_drafter(target)
    teacher = Teacher(
        target.model, taps=drafter.wiring.aux_boundaries, target_ids_V=drafter.target_ids_V, num_steps=num_steps
    )
    rng = np.random.default_rng(0)
    assistant = np.zeros((2, 12), dtype=bool)
    assistant[0, 3:9] = assistant[1, 2:4] = assistant[1, 6:12] = True
    batch = Batch(tokens_BT=rng.integers(0, VOCAB, (2, 12)), assistant_BT=assistant, num_tokens=24)
    return drafter, teacher.teach(batch), teacher


CONFIG = UnrollConfig(num_steps=3, decay=0.8, reach=0.5, adaptation=3.0, chunk_rows=4)


def run(config: UnrollConfig) -> tuple[Tensor, list[Tensor]]:
    drafter, lesson, _ = lesson_of()
    parameters = [p.requires_grad_() for n, p in drafter.named_parameters() if "embed" not in n]
    head = tuple(drafter.lm_head.parameters())
    tested = run_test(drafter, head, lesson, config, CpuKernel(), torch.full((3,), 0.4))  # type: ignore[arg-type]
    return tested.loss, list(torch.autograd.grad(tested.loss, parameters))


def test_chunks_do_not_change_the_loss_or_its_gradient() -> None:
    loss, grads = run(CONFIG)
    whole, whole_grads = run(replace(CONFIG, chunk_rows=1000))
    torch.testing.assert_close(loss, whole)
    for one, other in zip(grads, whole_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_loss_falls_along_its_gradient() -> None:
    """Against finite differences, through all steps, for the parameter that all steps share."""
    torch.manual_seed(0)
    drafter, lesson, _ = lesson_of()
    head = tuple(drafter.lm_head.parameters())
    config = replace(CONFIG, reach=0.0, adaptation=0.0)  # `reach` weights are constants to the gradient
    weight = drafter.fc.weight.requires_grad_()
    drafter.lm_head.weight.requires_grad_()

    def loss() -> Tensor:
        return run_test(drafter, head, lesson, config, CpuKernel(), torch.zeros(3)).loss  # type: ignore[arg-type]

    (grad,) = torch.autograd.grad(loss(), weight)
    step = 1e-2 / grad.norm()
    with torch.no_grad():
        weight += step * grad
        above = loss()
        weight -= 2 * step * grad
        below = loss()
    slope = float((above - below) / (2 * step))
    assert slope == pytest.approx(float(grad.norm() ** 2), rel=0.03)
