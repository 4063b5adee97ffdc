"""Quantised checkpoints: unpacking against the packers' own packages or by hand, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.checkpoints import make_checkpoint
from models.test_target_logits import assert_equal_to_transformers, load
from outpace.errors import CheckpointError
from outpace.models.hf import unpack
from outpace.models.hf.config import read_target
from outpace.models.hf.quantised import read_scheme
from outpace.models.hf.wrapped import read_tensors
from outpace.models.target import Target

INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16, "symmetric": True},
        }
    },
    "ignore": ["lm_head"],
}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 32]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True, "sym": False}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("rows", "columns", "group"), [(24, 64, 32), (7, 96, 32), (16, 40, 8)])
def test_int4_is_unpacked_as_compressed_tensors_does(rows: int, columns: int, group: int, dtype: torch.dtype) -> None:
    package = pytest.importorskip("compressed_tensors.compressors.pack_quantized.base")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    weights = quantization.QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=group, symmetric=True)
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=weights)
    compressor = package.PackedQuantizationCompressor
    state = {
        "weight": torch.randn(rows, columns).to(dtype),
        "weight_scale": (torch.rand(rows, columns // group) + 0.05).to(dtype),
    }
    packed = compressor.compress(state, scheme)
    expected = compressor.decompress(packed, scheme)["weight"]
    found = unpack.int4_groups(packed["weight_packed"], packed["weight_scale"], packed["weight_shape"], group)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def pack_int4(weight: Tensor, group: int) -> dict[str, Tensor]:
    """By hand, and rounding to nearest."""
    scale = weight.unflatten(1, (-1, group)).abs().amax(-1) / 7
    numbers = (weight / scale.repeat_interleave(group, 1)).round().clamp(-8, 7).int() + 8
    words = torch.zeros(weight.shape[0], weight.shape[1] // 8, dtype=torch.int64)
    for place in range(8):
        words |= numbers[:, place::8].long() << (4 * place)
    words = torch.where(words >= 2**31, words - 2**32, words).int()
    return {"weight_packed": words, "weight_scale": scale, "weight_shape": torch.tensor(weight.shape)}


def pack_fp8(weight: Tensor, rows: int = 16, columns: int = 32) -> dict[str, Tensor]:
    scale = 0.4 * torch.rand(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns)) + 0.3
    return {"weight": weight.to(torch.float8_e4m3fn), "weight_scale_inv": scale}


def quantise(directory: Path, config: dict[str, Any], pack: Any) -> dict[str, Tensor]:
    """Rewrites the products of a checkpoint; returns what each weight then is, by its own arithmetic."""
    path = directory / "model.safetensors"
    tensors, truth = load_file(path), {}
    scheme = read_scheme({"quantization_config": config}, "here")
    assert scheme is not None
    for name in [name for name in tensors if "proj" in name and name.endswith("weight")]:
        parts = pack(tensors.pop(name))
        tensors |= {f"{name.removesuffix('weight')}{suffix}": part.contiguous() for suffix, part in parts.items()}
        truth[name] = scheme.make(parts)
    save_file(tensors, path)
    written = json.loads((directory / "config.json").read_text()) | {"quantization_config": config}
    (directory / "config.json").write_text(json.dumps(written))
    return truth


@pytest.mark.parametrize(
    ("architecture", "config", "pack", "name"),
    [
        ("llama", INT4, lambda w: pack_int4(w, 16), "INT4 weights in groups of 16"),
        ("deepseek_v3", FP8, pack_fp8, "FP8 weights in blocks of 16 x 32"),
    ],
)
def test_a_quantised_checkpoint_is_the_dequantised_model(
    architecture: str, config: dict[str, Any], pack: Any, name: str, tmp_path: Path
) -> None:
    sizes = {"intermediate_size": 96, "moe_intermediate_size": 32, "kv_lora_rank": 16, "q_lora_rank": 32}
    sizes |= {"qk_nope_head_dim": 8, "v_head_dim": 8}
    reference = make_checkpoint(
        tmp_path, architecture, **({} if architecture == "llama" else sizes) | {"hidden_size": 64}
    )
    truth = quantise(tmp_path, config, pack)
    own = reference.state_dict()
    with torch.no_grad():
        for key, weight in truth.items():
            if key in own:
                own[key].copy_(weight.float())
            else:  # transformers holds the experts of a layer together
                layer, expert, kind = key.split(".")[2], int(key.split(".")[5]), key.split(".")[6]
                width = weight.shape[0]
                held = own[f"model.layers.{layer}.mlp.experts.{'down_proj' if kind == 'down_proj' else 'gate_up_proj'}"]
                rows = held[expert] if kind == "down_proj" else held[expert].split(width)[kind == "up_proj"]
                rows.copy_(weight.float())
    read_config, notes = read_target(tmp_path)
    assert any(name in note for note in notes)
    target = Target(read_config)
    target.load(read_tensors(tmp_path))
    assert_equal_to_transformers(target, reference)


def test_awq_is_unpacked() -> None:
    K, N, group = 32, 24, 16
    numbers, zeros = torch.randint(0, 16, (K, N)), torch.randint(0, 16, (K // group, N))
    scales = torch.rand(K // group, N).half()

    def pack(values: Tensor) -> Tensor:
        words = torch.zeros(values.shape[0], N // 8, dtype=torch.int64)
        for place, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            words |= values[:, column::8].long() << (4 * place)
        return torch.where(words >= 2**31, words - 2**32, words).int()

    found = unpack.awq(pack(numbers), pack(zeros), scales, group)
    expected = (numbers - zeros.repeat_interleave(group, 0)).half() * scales.repeat_interleave(group, 0)
    assert torch.equal(found, expected.t())


def test_gptq_is_unpacked_with_its_order() -> None:
    K, N, groups = 32, 24, 2
    numbers, zeros = torch.randint(0, 16, (K, N)), torch.randint(1, 17, (groups, N))
    scales, g_idx = torch.rand(groups, N).half(), torch.randperm(K) % groups
    qweight, qzeros = torch.zeros(K // 8, N, dtype=torch.int64), torch.zeros(groups, N // 8, dtype=torch.int64)
    for place in range(8):
        qweight |= numbers[place::8].long() << (4 * place)
        qzeros |= (zeros[:, place::8] - 1).long() << (4 * place)
    words = [torch.where(w >= 2**31, w - 2**32, w).int() for w in (qweight, qzeros)]
    found = unpack.gptq(*words, scales, g_idx.int())
    assert torch.equal(found, ((numbers - zeros[g_idx]).half() * scales[g_idx]).t())


def of_group(**fields: Any) -> dict[str, Any]:
    group = INT4["config_groups"]["group_0"]
    return {**INT4, "config_groups": {"group_0": group | fields}}


def of_weights(**fields: Any) -> dict[str, Any]:
    return of_group(weights=INT4["config_groups"]["group_0"]["weights"] | fields)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'; served are"),
        ("int4", "quantization_config is 'int4'"),
        (INT4 | {"format": "nvfp4-pack-quantized"}, "format is 'nvfp4-pack-quantized'"),
        (INT4 | {"config_groups": {}}, "config_groups"),
        (INT4 | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        ({**INT4, "config_groups": {"g": {"weights": {"num_bits": 8}}}}, "num_bits is 8; served is 4"),
        ({"quant_method": ["fp8"]}, r"quant_method is \['fp8'\]"),
        (INT4 | {"quantization_status": "frozen"}, "quantization_status is 'frozen'; served is 'compressed'"),
        (INT4 | {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config is .*; served is {}"),
        (INT4 | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        (of_group(format="nvfp4-pack-quantized"), "group_0: format is 'nvfp4-pack-quantized'"),
        (of_group(input_activations={"num_bits": 8}), "input_activations is .*; served is none"),
        (of_group(weights=None), "group_0: weights is None; it must say how they are packed"),
        (of_group(weights=[1]), r"group_0: weights is \[1\]"),
        (of_weights(strategy="channel"), "strategy is 'channel'; served is 'group'"),
        (of_weights(symmetric=False), "symmetric is False; served is True"),
        (of_weights(actorder="group"), "actorder is 'group'"),
        (of_weights(block_structure="16x1"), "block_structure is '16x1'; served is none"),
        (of_weights(group_size=-1), "group_size is -1"),
        (FP8 | {"weight_block_size": None}, "weight_block_size is None"),
        (FP8 | {"weight_block_size": [True, True]}, "weight_block_size"),
        (FP8 | {"weight_block_size": [2**40, 128]}, "weight_block_size"),
        (FP8 | {"activation_scheme": "static"}, "activation_scheme is 'static'; served is 'dynamic'"),
        (FP8 | {"fmt": "e5m2"}, "fmt is 'e5m2'"),
        (AWQ | {"version": "gemv"}, "version is 'gemv'"),
        (AWQ | {"group_size": -1}, "group_size is -1"),
        (AWQ | {"zero_point": False}, "zero_point is False"),
        (GPTQ | {"bits": 3}, "bits is 3; served is 4"),
        (GPTQ | {"checkpoint_format": "gptq_v2"}, "checkpoint_format is 'gptq_v2'"),
        (GPTQ | {"format": "gptq_v2"}, "format is 'gptq_v2'"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format"),
        (GPTQ | {"group_size": "16"}, "group_size is '16'"),
    ],
)
def test_schemes_that_are_not_served(config: Any, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        read_scheme({"quantization_config": config}, "config.json")


def test_fields_of_a_scheme_that_nobody_reads_are_said() -> None:
    for config in (INT4 | {"rotation": "R1"}, of_group(rotation=1), of_weights(rotation=1), FP8 | {"rotation": 1}):
        scheme = read_scheme({"quantization_config": config}, "config.json")
        assert scheme is not None and scheme.note.endswith("; not used: rotation")
    scheme = read_scheme({"quantization_config": AWQ | {"version": "GEMM", "modules_to_not_convert": ["lm_head"]}}, "")
    assert scheme is not None and scheme.note == "INT4 weights in groups of 16 (AWQ)"


def pack_awq(weight: Tensor) -> dict[str, Tensor]:
    N, K = weight.shape
    numbers = torch.zeros(K, N // 8).int(), torch.zeros(K // 16, N // 8).int()
    return {"qweight": numbers[0], "qzeros": numbers[1], "scales": torch.rand(K // 16, N).half()}


def pack_gptq(weight: Tensor) -> dict[str, Tensor]:
    N, K = weight.shape
    numbers = torch.zeros(K // 8, N).int(), torch.zeros(K // 16, N // 8).int()
    g_idx = (torch.arange(K) // 16).int()
    return {"qweight": numbers[0], "qzeros": numbers[1], "scales": torch.rand(K // 16, N).half(), "g_idx": g_idx}


WAYS: dict[str, Any] = {
    "a number": lambda part: torch.zeros((), dtype=part.dtype),
    "flat": lambda part: torch.cat((part.flatten(), part.flatten())),
    "deeper": lambda part: part[None].clone(),
    "empty": lambda part: part[:0].clone(),
    "half": lambda part: part[..., : part.shape[-1] // 2].contiguous(),
    "bytes": lambda part: torch.zeros(part.shape, dtype=torch.uint8),
    "complex": lambda part: torch.zeros(part.shape, dtype=torch.complex64),
    "not finite": lambda part: torch.full(part.shape, torch.nan).to(part.dtype),
}


@pytest.mark.parametrize(
    ("config", "pack"),
    [(INT4, lambda w: pack_int4(w, 16)), (FP8, pack_fp8), (AWQ, pack_awq), (GPTQ, pack_gptq)],
    ids=["int4", "fp8", "awq", "gptq"],
)
def test_a_damaged_part_is_refused_with_its_weight(config: dict[str, Any], pack: Any, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", hidden_size=64, intermediate_size=96)
    quantise(tmp_path, config, pack)
    path, base = tmp_path / "model.safetensors", "model.layers.1.mlp.up_proj."
    whole = load_file(path)
    for name in [name for name in whole if name.startswith(base)]:
        for way, damage in WAYS.items():
            if way == "not finite" and not whole[name].is_floating_point():
                continue
            save_file(whole | {name: damage(whole[name])}, path)
            with pytest.raises(CheckpointError, match=rf"{base}weight"):
                Target(read_target(tmp_path)[0]).load(read_tensors(tmp_path))
    if config is not FP8:
        save_file(whole | {f"{base}weight": torch.zeros(96, 64)}, path)
        with pytest.raises(CheckpointError, match=f"{base}weight beside the same weight packed"):
            read_tensors(tmp_path)


def test_a_missing_or_misshaped_part_is_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", hidden_size=64, intermediate_size=96)
    quantise(tmp_path, INT4, lambda w: pack_int4(w, 16))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    scale = tensors.pop("model.layers.1.mlp.up_proj.weight_scale")
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight_scale"):
        Target(read_target(tmp_path)[0]).load(read_tensors(tmp_path))
    save_file(tensors | {"model.layers.1.mlp.up_proj.weight_scale": scale[:, 1:].contiguous()}, path)
    with pytest.raises(CheckpointError, match=r"up_proj\.weight cannot be unpacked: weight_scale is .*\[96, 3\]"):
        Target(read_target(tmp_path)[0]).load(read_tensors(tmp_path))
    tensors["model.layers.1.mlp.up_proj.weight_scale"] = scale
    tensors["model.layers.1.mlp.up_proj.weight_packed"] = tensors["model.layers.1.mlp.up_proj.weight_packed"].float()
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"weight_packed is torch\.float32"):
        Target(read_target(tmp_path)[0]).load(read_tensors(tmp_path))


def test_an_unquantised_checkpoint_stays_as_it_is(tmp_path: Path) -> None:
    reference = make_checkpoint(tmp_path, "llama")
    assert_equal_to_transformers(load(tmp_path), reference)
