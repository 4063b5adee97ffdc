"""Acceptance, commit, boundaries and places against their PyTorch forms; without a GPU the interpreter runs them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.gpu.test_attention import DEVICE
from outpace.kernels.accept import Ledger, settle
from outpace.kernels.kv import keep_boundaries, places

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu import places as gpu_places
from outpace.kernels.gpu import settle as gpu_settle

R, W = 6, 8


def ledger(chance: bool) -> Ledger:
    return Ledger(
        length_R=torch.tensor([3, 40, 9, 95, 0, 0]),
        last_token_R=torch.zeros(R, dtype=torch.int64),
        num_pending_R=torch.zeros(R, dtype=torch.int64),
        pending_tokens_RW=torch.zeros((R, W), dtype=torch.int64),
        max_k_R=torch.tensor([7, 2, 0, 7, 7, 7]),
        seed_R=torch.arange(R) * 3,
        chance_RK=torch.rand(R, W - 1) if chance else None,
        max_positions=97,
    )


def on_gpu(given: Ledger) -> dict[str, object]:
    values = {name: getattr(given, name) for name in Ledger.__dataclass_fields__}
    return {
        name: value.clone().to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in values.items()
    }


@pytest.mark.parametrize("k", [0, 1, 4, 7])
@pytest.mark.parametrize("chance", [False, True])
def test_settles_as_the_reference(k: int, chance: bool) -> None:
    rows = torch.tensor([3, 0, 2, 1, 5, 5])
    chosen = torch.randint(0, 3, (len(rows), k + 1))
    drafts = torch.where(torch.rand(len(rows), k) < 0.7, chosen[:, :k], 7) if k else None
    chosen[4:] = chosen[4]  # the inert row is there twice; what it gets is the same
    if drafts is not None:
        drafts[4:] = drafts[4]
    given = ledger(chance)
    found = on_gpu(given)
    outcome = gpu_settle.settle(
        rows.to(DEVICE), None if drafts is None else drafts.to(DEVICE), chosen.to(DEVICE), **found
    )
    expected = replace(given, **{n: v.clone() for n, v in vars_of(given).items()})
    assert torch.equal(outcome.cpu(), settle(expected, rows, drafts, chosen))
    for name, value in vars_of(expected).items():
        assert torch.equal(found[name].cpu(), value), name
    assert int(found["length_R"][-1]) == 0


def vars_of(given: Ledger) -> dict[str, torch.Tensor]:
    values = {name: getattr(given, name) for name in Ledger.__dataclass_fields__}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def test_keeps_the_features_of_completed_pages() -> None:
    fused = torch.randn(2, 3, 40, device=DEVICE)
    slots = torch.tensor([[14, 15, 16], [31, 0, 47]], device=DEVICE)
    found = torch.zeros(4, 40, device=DEVICE)
    gpu_settle.keep_boundaries(found, fused, slots, 16)
    expected = torch.zeros(4, 40)
    keep_boundaries(expected, fused.cpu(), slots.cpu(), 16)
    assert torch.equal(found[1:].cpu(), expected[1:])


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("with_kept", [False, True])
def test_places_are_the_references(ahead: int, with_kept: bool) -> None:
    table = torch.randint(1, 50, (4, 5))
    start = torch.tensor([0, 7, 78, 500])
    kept = torch.tensor([0, 3, 5, 2]) if with_kept else None
    positions, slots = places(start, 5, kept, table, 16, ahead=ahead)
    found = gpu_places.places(
        start.to(DEVICE), 5, None if kept is None else kept.to(DEVICE), table.to(DEVICE), 16, ahead
    )
    assert torch.equal(found[0].cpu(), positions)
    assert torch.equal(found[1].cpu(), slots)
