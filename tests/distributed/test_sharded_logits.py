"""Shares of a model on several ranks give transformers' logits, and every rank the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from distributed.threads import on_ranks
from models.checkpoints import make_checkpoint, make_kimi
from models.dense_attend import DenseAttend
from models.drafters import make_drafter
from outpace.distributed.group import ALONE, Group
from outpace.errors import ConfigError
from outpace.kernels.gpu.join import join
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import load_drafter, save_drafter
from outpace.models.loading import Slot
from outpace.models.registry import load_target
from outpace.models.shares import Share, kv_share, padded_share
from outpace.models.source import locate
from outpace.models.target import Target

TOLERANCE = 1e-4
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "llama": ("llama", 2, {}),
    "llama, more ranks than KV heads": ("llama", 4, {}),
    "llama tied": ("llama", 2, {"tie_word_embeddings": True}),
    "llama bias": ("llama", 2, {"attention_bias": True, "mlp_bias": True}),
    "mistral window": ("mistral", 2, {"sliding_window": 7}),
    "qwen2": ("qwen2", 2, {}),
    "qwen3": ("qwen3", 2, {"attention_bias": True}),
    "mixtral": ("mixtral", 2, {}),
    "qwen3_moe some layers": ("qwen3_moe", 4, {"decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    "deepseek_v2": ("deepseek_v2", 2, {"topk_method": "group_limited_greedy", "attention_bias": True}),
    "deepseek_v3": ("deepseek_v3", 2, {"n_shared_experts": 2}),
    "kimi": ("kimi", 2, {}),
    "deepseek_v3 lite": ("deepseek_v3", 4, {"q_lora_rank": None, "n_group": 1, "topk_group": 1}),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, packed: bool, tmp_path: Path) -> None:
    architecture, size, overrides = CASES[case]
    reference = make_kimi(tmp_path) if case == "kimi" else make_checkpoint(tmp_path, architecture, **overrides)
    tokens_BS = torch.randint(0, 131, (3, 21))
    positions_BS = torch.arange(21).expand(3, -1)

    def run(group: Group) -> tuple[Tensor, Tensor, int]:
        target = load_target(locate(str(tmp_path)), dtype=torch.float32, device="cpu", group=group).model
        num_weights = sum(parameter.numel() for parameter in target.layers.parameters())
        if packed:
            target.pack()
        hidden_BSH, features_BSF = target(tokens_BS, positions_BS, DenseAttend(target.config.windows), (0, 2, 4))
        assert features_BSF is not None
        return target.logits(hidden_BSH), features_BSF, num_weights

    found = on_ranks(size, run)
    with torch.inference_mode():
        expected = reference(tokens_BS, output_hidden_states=True)
    for logits_BSV, features_BSF, _ in found:
        torch.testing.assert_close(logits_BSV, expected.logits, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(features_BSF[..., 48:96], expected.hidden_states[2], atol=TOLERANCE, rtol=0)
        assert torch.equal(logits_BSV, found[0][0]) and torch.equal(features_BSF, found[0][1])
    whole = sum(p.numel() for p in Target(_config(tmp_path)).layers.parameters())
    assert found[0][2] < (0.75 if size == 2 else 0.6) * whole, "a rank holds a share, not all"


def _config(directory: Path) -> Any:
    return load_target(locate(str(directory)), dtype=torch.float32, device="cpu").config


def test_a_sharded_drafter_is_the_whole_one(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "target", "llama")
    alone = load_target(locate(str(tmp_path / "target")), dtype=torch.float32, device="cpu").model
    drafter = Drafter.create(alone, draft_ids=torch.arange(0, 131, 3))
    save_drafter(drafter, tmp_path / "drafter")
    tokens_BS, features_BSF = torch.randint(0, 131, (2, 5)), torch.randn(2, 5, 3 * 48)
    positions_BS = torch.arange(5).expand(2, -1)

    def run(group: Group) -> Tensor:
        target = load_target(locate(str(tmp_path / "target")), dtype=torch.float32, device="cpu", group=group).model
        shared = load_drafter(tmp_path / "drafter", target, dtype=torch.float32, device="cpu")
        assert shared.mlp.down.in_features * group.size == drafter.mlp.down.in_features
        _, out = shared(tokens_BS, shared.fuse(features_BSF), positions_BS, DenseAttend((None,)))
        return shared.logits(out)

    whole = run(ALONE)
    assert whole.shape[-1] == 44
    for logits in on_ranks(2, run):
        torch.testing.assert_close(logits, whole, atol=1e-5, rtol=0)


def test_a_sharded_drafter_with_latents_is_the_whole_one(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "target", "deepseek_v3")
    config = load_target(locate(str(tmp_path / "target")), dtype=torch.float32, device="cpu").config
    make_drafter(tmp_path / "drafter", "mla", config, boundaries=(0, 2, 4))
    tokens_BS, features_BSF = torch.randint(0, 131, (2, 5)), torch.randn(2, 5, 3 * 48)
    positions_BS = torch.arange(5).expand(2, -1)

    def run(group: Group) -> tuple[Tensor, int, int]:
        target = load_target(locate(str(tmp_path / "target")), dtype=torch.float32, device="cpu", group=group).model
        drafter = load_drafter(
            tmp_path / "drafter", target, dtype=torch.float32, device="cpu", aux_boundaries=(0, 2, 4)
        )
        _, out = drafter(tokens_BS, drafter.fuse(features_BSF), positions_BS, DenseAttend((None,)))
        return drafter.logits(out), drafter.attention.num_heads, drafter.num_cached_heads

    whole, num_heads, _ = run(ALONE)
    for logits, share, cached in on_ranks(2, run):
        torch.testing.assert_close(logits, whole, atol=1e-5, rtol=0)
        assert (share, cached) == (num_heads // 2, 1)


def test_a_drafter_that_cannot_be_shared_is_whole_on_each_rank(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")

    def run(group: Group) -> tuple[int, int]:
        target = load_target(locate(str(tmp_path)), dtype=torch.float32, device="cpu", group=group).model
        drafter = Drafter.create(target, draft_ids=None, num_heads=3, num_kv_heads=1, head_dim=16)
        return drafter.attention.num_heads, drafter.num_cached_heads

    assert on_ranks(2, run) == [(3, 1), (3, 1)]


@pytest.mark.parametrize(
    ("overrides", "size", "says"),
    [
        ({}, 3, "num_attention_heads is 4, which 3 ranks cannot share evenly: try 2 or 4"),
        ({"intermediate_size": 81}, 2, "intermediate_size is 81"),
        (
            {"num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 36},
            2,
            "heads is 3, .*: try 1 or 3",
        ),
    ],
)
def test_sizes_that_ranks_cannot_share_are_named(
    overrides: dict[str, Any], size: int, says: str, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, "llama", **overrides)
    with pytest.raises(ConfigError, match=says):
        load_target(locate(str(tmp_path)), dtype=torch.float32, device="cpu", group=Group(0, size))


def test_shares_cover_everything_once() -> None:
    for size, whole in ((2, 131), (4, 131), (4, 3), (1, 7)):
        shares = [padded_share(Group(rank, size), whole)[0] for rank in range(size)]
        covered = [index for share in shares for index in range(share.start, share.start + share.size)]
        assert covered == list(range(whole))
    assert [kv_share(Group(rank, 8), 2).start for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_slot_takes_its_part() -> None:
    whole = torch.arange(24.0).view(4, 6)
    slot = Slot(torch.zeros(4, 2), Share(2, 2, 6), dim=1)
    assert slot.shape == whole.shape
    slot.take(whole)
    assert torch.equal(slot.tensor, whole[:, 2:4])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 1, 1, 48), (1, 2, 3, 1000), (8, 1, 4, 1024)])
def test_join_adds_summands_in_order(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    summands = torch.randn(shape, device=device)
    expected = summands[0].clone()
    for part in summands[1:]:
        expected += part
    found = join(summands, dtype)
    assert found.dtype is dtype
    if dtype is torch.float32 or device == "cuda":
        assert torch.equal(found, expected.to(dtype))
    else:  # the interpreter cuts what a GPU rounds
        torch.testing.assert_close(found.float(), expected, atol=1e-6, rtol=2**-7)
