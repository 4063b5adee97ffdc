"""Experts that stay packed: the same model as unpacked at load, on one rank and cut over several, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from distributed.threads import on_ranks
from models.checkpoints import make_checkpoint
from models.dense_attend import DenseAttend
from models.test_quantised import AWQ, FP8, GPTQ, INT4, pack_fp8, pack_int4, quantise
from outpace import LLM, SamplingParams
from outpace.distributed.group import ALONE, Group
from outpace.errors import CheckpointError, ConfigError
from outpace.kernels.int4 import Int4
from outpace.models.arch import MixtureConfig
from outpace.models.hf import unpack
from outpace.models.hf.config import read_target
from outpace.models.hf.quantised import read_scheme
from outpace.models.hf.wrapped import read_tensors
from outpace.models.layers import Linear
from outpace.models.mixture import Mixture
from outpace.models.packed import Packing, plan
from outpace.models.registry import LoadedTarget, load_target
from outpace.models.slots import PRODUCTS
from outpace.models.source import locate
from outpace.models.target import Target

GROUPED = {
    **INT4,
    "config_groups": {"g": {"weights": INT4["config_groups"]["group_0"]["weights"] | {"group_size": 32}}},
}
FP8_128 = FP8 | {"weight_block_size": [128, 128]}
SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64, "kv_lora_rank": 32, "q_lora_rank": 32,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 6, "n_group": 1, "topk_group": 1,
}  # fmt: skip
CUDA = torch.device("cuda")
HALF = torch.bfloat16


def checkpoint(directory: Path) -> None:
    """DeepSeek-V3's architecture, in bf16, its experts as Kimi-K2 packs them."""
    make_checkpoint(directory, "deepseek_v3", dtype=HALF, **SIZES)
    quantise(directory, GROUPED, lambda weight: pack_int4(weight, 32))


def packing_of(directory: Path, **changes: Any) -> tuple[Packing | None, str | None]:
    given: dict[str, Any] = {"weights": "auto", "group": ALONE, "dtype": HALF, "device": CUDA}
    given |= {"expert_prefix": "mlp.experts.", "products": PRODUCTS} | changes
    return plan(read_target(directory)[0], read_tensors(directory), **given)


@pytest.mark.parametrize("size", [1, 2])
def test_packed_experts_give_the_same_logits(size: int, tmp_path: Path) -> None:
    checkpoint(tmp_path)
    tokens_BS, positions_BS = torch.randint(0, 131, (2, 9)), torch.arange(9).expand(2, -1)
    packing, said = packing_of(tmp_path)
    assert packing is not None and packing.layers == {1, 2, 3}
    assert said is not None and "experts of 3 layers and 20 other products stay packed" in said
    config = read_target(tmp_path)[0]

    def run(group: Group) -> tuple[Tensor, Tensor, bool]:
        logits = []
        for kept in (packing_of(tmp_path, group=group)[0], None):
            target = Target(config, group=group, dtype=HALF, packing=kept)
            target.load(read_tensors(tmp_path))
            held = [module.packed is not None for module in target.modules() if isinstance(module, Mixture)]
            hidden_BSH, _ = target(tokens_BS, positions_BS, DenseAttend(target.config.windows))
            logits.append(target.logits(hidden_BSH))
        return logits[0], logits[1], any(held)

    for packed, unpacked, held_after in on_ranks(size, run):
        assert torch.equal(packed, unpacked), "they are the same numbers, summed in the same order"
        assert not held_after


def fp8_checkpoint(directory: Path) -> None:
    """DeepSeek-V3's architecture, in bf16, all products in FP8 as DeepSeek packs them; turned dimensions in pairs."""
    sizes = SIZES | {"hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 256, "v_head_dim": 64}
    make_checkpoint(directory, "deepseek_v3", dtype=HALF, **sizes)
    quantise(directory, FP8_128, lambda weight: pack_fp8(weight, 128, 128))


@pytest.mark.parametrize("size", [1, 2])
def test_fp8_gives_the_same_logits(size: int, tmp_path: Path) -> None:
    fp8_checkpoint(tmp_path)
    tokens_BS, positions_BS = torch.randint(0, 131, (2, 9)), torch.arange(9).expand(2, -1)
    config = read_target(tmp_path)[0]
    packing, said = packing_of(tmp_path)
    assert packing is not None and packing.form == "fp8" and packing.layers == {1, 2, 3}
    assert {path for layer, path in packing.products if layer == 1} == {
        "attention.down", "attention.q_up", "attention.output", "mlp.shared.gate_up", "mlp.shared.down",
    }  # fmt: skip
    assert said is not None and "FP8 weights in blocks of 128 x 128: the experts of 3 layers" in said

    def run(group: Group) -> list[Tensor]:
        logits = []
        for kept in (packing_of(tmp_path, group=group)[0], None):
            target = Target(config, group=group, dtype=HALF, packing=kept)
            target.load(read_tensors(tmp_path))
            held = [module.held for module in target.modules() if isinstance(module, Linear)]
            assert any(held) is (kept is not None)
            hidden_BSH, _ = target(tokens_BS, positions_BS, DenseAttend(target.config.windows))
            logits.append(target.logits(hidden_BSH))
        return logits

    for packed, unpacked in on_ranks(size, run):
        assert torch.equal(packed, unpacked)


@pytest.mark.parametrize("size", [1, 2])
def test_packed_products_give_the_same_logits(size: int, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", dtype=HALF, hidden_size=128, intermediate_size=192)
    quantise(tmp_path, GROUPED, lambda weight: pack_int4(weight, 32))
    tokens_BS, positions_BS = torch.randint(0, 131, (2, 9)), torch.arange(9).expand(2, -1)
    packing, said = packing_of(tmp_path)
    assert packing is not None and not packing.layers and len(packing.products) == 4 * 4
    assert said is not None and "16 other products stay packed" in said
    config = read_target(tmp_path)[0]

    def run(group: Group) -> list[Tensor]:
        logits = []
        for kept in (packing_of(tmp_path, group=group)[0], None):
            target = Target(config, group=group, dtype=HALF, packing=kept)
            target.load(read_tensors(tmp_path))
            assert all((layer.mlp.down.held is None) is (kept is None) for layer in target.layers)
            hidden_BSH, _ = target(tokens_BS, positions_BS, DenseAttend(target.config.windows))
            logits.append(target.logits(hidden_BSH))
        return logits

    for packed, unpacked in on_ranks(size, run):
        assert torch.equal(packed, unpacked)


def test_a_product_whose_groups_ranks_would_cut_is_unpacked(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", dtype=HALF, hidden_size=128, intermediate_size=96)
    quantise(tmp_path, GROUPED, lambda weight: pack_int4(weight, 32))
    packing, _ = packing_of(tmp_path, group=Group(0, 2))
    assert packing is not None
    assert {path for _, path in packing.products} == {"attention.qkv", "attention.output", "mlp.gate_up"}


def test_the_loader_says_what_stays_packed(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    source = locate(str(tmp_path))
    loaded = load_target(source, dtype=HALF, device="cpu")
    assert any("INT4" in note and "not on a CPU" in note for note in loaded.notes)
    with pytest.raises(ConfigError, match='weights is "packed", but there are kernels for packed weights on a GPU'):
        load_target(source, dtype=HALF, device="cpu", weights="packed")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"weights": "unpacked"}, 'weights is "unpacked"'),
        ({"dtype": torch.float32}, "compute in 16 bits, not in torch.float32"),
        ({"group": Group(0, 4)}, "a rank's 16 of the experts' 64 inputs are no whole groups of 32"),
    ],
)
def test_what_cannot_stay_packed_is_said(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    checkpoint(tmp_path)
    packing, said = packing_of(tmp_path, **changes)
    assert packing is None and said is not None and why in said
    if "weights" not in changes:
        with pytest.raises(ConfigError, match=why.replace("'", ".")):
            packing_of(tmp_path, **changes | {"weights": "packed"})


def test_other_checkpoints_are_unpacked(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "plain", "deepseek_v3")
    assert packing_of(tmp_path / "plain") == (None, None)
    with pytest.raises(ConfigError, match="the checkpoint is not quantised"):
        packing_of(tmp_path / "plain", weights="packed")
    make_checkpoint(tmp_path / "fp8", "deepseek_v3", **SIZES)
    quantise(tmp_path / "fp8", FP8, pack_fp8)
    assert "its blocks are of 32 inputs; the kernels take multiples of 128" in str(packing_of(tmp_path / "fp8")[1])
    make_checkpoint(tmp_path / "dense", "llama", hidden_size=64, intermediate_size=96)
    quantise(tmp_path / "dense", INT4, lambda weight: pack_int4(weight, 16))
    assert "groups are of 16 inputs" in str(packing_of(tmp_path / "dense")[1])


def test_a_layer_with_one_plain_expert_is_unpacked(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    path, base = tmp_path / "model.safetensors", "model.layers.2.mlp.experts.4.up_proj"
    tensors = load_file(path)
    scheme = read_scheme({"quantization_config": GROUPED}, "here")
    assert scheme is not None
    parts = {suffix: tensors.pop(f"{base}.{suffix}") for suffix in (scheme.main, *scheme.others)}
    save_file(tensors | {f"{base}.weight": scheme.make(parts)}, path)
    packing, _ = packing_of(tmp_path)
    assert packing is not None and packing.layers == {1, 3}
    target = Target(read_target(tmp_path)[0], dtype=HALF, packing=packing)
    target.load(read_tensors(tmp_path))


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    packing, _ = packing_of(tmp_path)
    path, name = tmp_path / "model.safetensors", "model.layers.1.mlp.experts.0.down_proj.weight_scale"
    tensors = load_file(path)
    scale = tensors.pop(name)
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=rf"lacks {name}"):
        Target(read_target(tmp_path)[0], dtype=HALF, packing=packing).load(read_tensors(tmp_path))
    save_file(tensors | {name: scale[:, 1:].contiguous()}, path)
    with pytest.raises(CheckpointError, match=r"down_proj\.weight cannot stay packed: weight_scale is .*\[64, 2\]"):
        Target(read_target(tmp_path)[0], dtype=HALF, packing=packing).load(read_tensors(tmp_path))
    wrong = {f"{name.removesuffix('weight_scale')}{s}": p for s, p in pack_int4(torch.randn(64, 96), 32).items()}
    save_file(tensors | wrong, path)
    with pytest.raises(CheckpointError, match=r"it has shape \[64, 96\]; the config asks for \[64, 64\]"):
        Target(read_target(tmp_path)[0], dtype=HALF, packing=packing).load(read_tensors(tmp_path))
    scale[5, 1] = torch.inf
    save_file(tensors | {name: scale}, path)
    with pytest.raises(CheckpointError, match=r"down_proj\.weight has scales that are not finite in torch\.bfloat16"):
        Target(read_target(tmp_path)[0], dtype=HALF, packing=packing).load(read_tensors(tmp_path))


def words(numbers: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Eight numbers along the last dimension in an int32."""
    total = torch.zeros((*numbers.shape[:-1], numbers.shape[-1] // 8), dtype=torch.int64)
    for place, source in enumerate(order):
        total |= numbers[..., source::8].long() << (4 * place)
    return torch.where(total >= 2**31, total - 2**32, total).int()


def awq_parts(N: int, K: int, group: int) -> dict[str, Tensor]:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        "qweight": words(torch.randint(0, 16, (K, N)), order),
        "qzeros": words(torch.randint(0, 16, (K // group, N)), order),
        "scales": torch.rand(K // group, N).half(),
    }


def gptq_parts(N: int, K: int, group: int) -> dict[str, Tensor]:
    return {
        "qweight": words(torch.randint(0, 16, (N, K))).t().contiguous(),
        "qzeros": words(torch.randint(0, 16, (K // group, N))),
        "scales": torch.rand(K // group, N).half(),
        "g_idx": (torch.arange(K) // group).int(),
    }


@pytest.mark.parametrize(
    ("config", "make"),
    [
        (GROUPED, lambda: pack_int4(torch.randn(48, 192).half(), 32)),
        (AWQ | {"group_size": 32}, lambda: awq_parts(48, 192, 32)),
        (GPTQ | {"group_size": 32, "desc_act": False}, lambda: gptq_parts(48, 192, 32)),
    ],
)
@pytest.mark.parametrize(("rows", "columns"), [((0, 48), (0, 192)), ((16, 40), (0, 192)), ((0, 48), (64, 160))])
def test_a_part_is_the_part_of_the_whole(
    config: dict[str, Any], make: Callable[[], dict[str, Tensor]], rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    scheme = read_scheme({"quantization_config": config}, "here")
    assert scheme is not None and scheme.part is not None and scheme.group == 32
    parts = make()
    window = unpack.Window(slice(*rows), slice(*columns), (48, 192), torch.device("cpu"))
    part = scheme.part(parts, window)
    held = Int4.empty(
        outputs=rows[1] - rows[0], inputs=columns[1] - columns[0], has_zeros=scheme.form == "int4_zeros",
        dtype=torch.float16, device="cpu",
    )  # fmt: skip
    held.fill(part)
    assert torch.equal(held.unpacked(), scheme.make(parts)[slice(*rows), slice(*columns)])


def test_groups_are_not_cut() -> None:
    scheme = read_scheme({"quantization_config": GROUPED}, "here")
    assert scheme is not None and scheme.part is not None
    window = unpack.Window(slice(0, 8), slice(16, 48), (8, 64), torch.device("cpu"))
    with pytest.raises(ValueError, match="inputs 16 … 48 are wanted, which are no whole groups of 32"):
        scheme.part(pack_int4(torch.randn(8, 64), 32), window)


def test_the_order_of_activations_is_left_to_unpacking() -> None:
    scheme = read_scheme({"quantization_config": GPTQ}, "here")
    assert scheme is not None and scheme.part is None and scheme.group is None
    parts = gptq_parts(8, 64, 32)
    parts["g_idx"] = parts["g_idx"].flip(0)
    with pytest.raises(ValueError, match="desc_act"):
        unpack.gptq_part(*parts.values(), 32, unpack.Window(slice(0, 8), slice(0, 64), (8, 64), torch.device("cpu")))


@pytest.mark.parametrize("packed", [False, True])
def test_summands_by_kernels_are_the_layer(packed: bool) -> None:
    """All of Kimi's kinds at once: its router, packed experts, and what all tokens go through."""
    pytest.importorskip("triton", reason="the kernels need Triton")
    from kernels.gpu.test_attention import DEVICE, DTYPES

    config = MixtureConfig(
        num_experts=12, num_chosen=3, intermediate_size=32, normalizes=True, layers=(True,), scoring="sigmoid",
        corrects=True, scale=2.5, shared_size=32, routes_in_float32=True,
    )  # fmt: skip
    kept = Packing(frozenset({0}), "int4") if packed else None
    layer = Mixture(128, config, packing=kept, dtype=DTYPES[1], device=DEVICE)
    with torch.inference_mode():
        for parameter in layer.parameters():
            parameter.normal_(0.0, 0.1)
        assert layer.correction_E is not None
        layer.correction_E.uniform_(-0.2, 0.2)
        if layer.packed is not None:
            for held in (layer.packed.gate_up, layer.packed.down):
                held.words.random_(-(2**31), 2**31 - 1)
                pair = int(torch.tensor(0.02, dtype=DTYPES[1]).view(torch.int16))
                held.scales.fill_(pair << 16 | pair)
        x = torch.randn(5, 128, device=DEVICE).to(DTYPES[1])
        layer.router.weight = nn.Parameter(layer.router.weight.to(DTYPES[1]))  # as on a GPU
        summands = layer._summands(x)
        assert summands.shape == (4, 5, 128) and summands.dtype is torch.float32
        if DEVICE.type == "cpu":
            layer.router.weight = nn.Parameter(layer.router.weight.float())
        experts, places = layer.choose(x)
        assert torch.equal(layer.route(x)[0].long() if DEVICE.type == "cuda" else experts, experts)
        expected = torch.zeros(5, 128, dtype=torch.float64, device=DEVICE)
        for token in range(5):
            for place, expert in enumerate(experts[token].tolist()):
                gate_up, down = layer.expert(expert)
                gate, up = (gate_up.double() @ x[token].double()).chunk(2)
                expected[token] += places[token, place] * (down.double() @ (nn.functional.silu(gate) * up))
        assert layer.shared is not None
        gate, up = (x.double() @ layer.shared.gate_up.weight.double().t()).chunk(2, -1)
        expected += (nn.functional.silu(gate) * up) @ layer.shared.down.weight.double().t()
        assert (summands.sum(0) - expected).norm() / expected.norm() < 1e-2


def test_an_engine_decodes_the_same_tokens(tmp_path: Path) -> None:
    """Packed weights are the unpacked ones to the bit, so on a CPU, where both are multiplied alike, tokens are too."""
    checkpoint(tmp_path)
    source = locate(str(tmp_path))
    config = read_target(tmp_path)[0]
    answers = []
    for kept in (packing_of(tmp_path)[0], None):
        target = Target(config, dtype=HALF, packing=kept)
        target.load(read_tensors(tmp_path))
        target.pack()
        llm = LLM.from_parts(LoadedTarget(config=config, model=target, tokenizer=None, source=source))
        experts = llm.describe()["kernels"]["experts"]
        assert experts.startswith("INT4, packed in memory") is (kept is not None)
        params = SamplingParams(max_tokens=12, ignore_eos=True)
        answers.append([result.token_ids for result in llm.generate([[5, 6, 7], [9, 3]], params)])
    assert answers[0] == answers[1]
