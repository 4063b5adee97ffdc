"""Fine-tuning a drafter of any dialect: its wiring and vocabulary stay, its weights learn, and are what is saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.drafters import DIALECTS, make_drafter, small_target
from outpace.errors import DrafterError
from outpace.models.drafters.checkpoint import load_drafter, save_drafter
from outpace.models.registry import LoadedTarget
from outpace.models.source import Source
from outpace.training.attention import CpuKernel
from outpace.training.dataset import Batch
from outpace.training.pipeline import prepare_drafter
from outpace.training.recipe import TrainConfig
from outpace.training.teacher import Teacher
from outpace.training.ttt import UnrollConfig, run_test
from outpace.training.weights import Weights

CONFIG = TrainConfig(steps=2, average=0.0, weight_decay=0.0)
UNROLL = UnrollConfig(num_steps=3, decay=0.8, reach=0.5, adaptation=3.0, chunk_rows=64)


@pytest.mark.parametrize("own_embedding", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("dialect", [name for name, kind in DIALECTS.items() if not kind.latent])
def test_every_dialect_learns_and_is_saved(tmp_path: Path, dialect: str, own_embedding: bool) -> None:
    model = small_target()
    source = Source(kind="directory", path=tmp_path, name="small")
    target = LoadedTarget(config=model.config, model=model, tokenizer=None, source=source)
    made = make_drafter(tmp_path / "given", dialect, model.config, own_embedding=own_embedding)
    prepared = prepare_drafter(target, (), CONFIG, str(made.directory))
    drafter = prepared.drafter
    assert prepared.coverage is None
    ids, taps = drafter.target_ids_V.clone(), drafter.wiring.aux_boundaries
    embeddings = drafter.embed.weight.clone()
    teacher = Teacher(model, taps=taps, target_ids_V=ids, num_steps=3)
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, (4, 24))
    lesson = teacher.teach(Batch(tokens_BT=tokens, assistant_BT=np.ones_like(tokens, dtype=bool), num_tokens=96))
    weights = Weights(drafter, CONFIG, 1e-2)
    head = tuple(p for p in drafter.lm_head.parameters() if p.requires_grad)
    losses = []
    for _ in range(6):
        tested = run_test(drafter, head, lesson, UNROLL, CpuKernel(), torch.zeros(3))
        tested.loss.backward()
        losses.append(float(tested.loss.detach()))
        assert {name for name, p in weights.working.items() if p.grad is None} == set()
        weights.collect()
        weights.step(1.0)
    assert losses[-1] < losses[0]
    assert torch.equal(drafter.embed.weight, embeddings)
    save_drafter(drafter, tmp_path / "tuned")
    again = load_drafter(tmp_path / "tuned", model, dtype=torch.float32, device="cpu")
    assert torch.equal(again.target_ids_V, ids)
    assert again.wiring.aux_boundaries == taps
    for (name, ours), (_, theirs) in zip(drafter.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def test_latent_attention_is_not_trained(tmp_path: Path) -> None:
    model = small_target()
    source = Source(kind="directory", path=tmp_path, name="small")
    target = LoadedTarget(config=model.config, model=model, tokenizer=None, source=source)
    made = make_drafter(tmp_path / "given", "mla", model.config)
    with pytest.raises(DrafterError, match="latent attention"):
        prepare_drafter(target, (), CONFIG, str(made.directory))
