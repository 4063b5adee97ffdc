"""GGUF files against the `gguf` package's own reader and transformers' reading of the same files."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging

from models.checkpoints import CONFIGS, randomise
from models.dense_attend import DenseAttend
from models.gguf_writing import GgufWriting, model_file, permuted, random_blocks
from outpace.errors import CheckpointError
from outpace.models.arch import RopeConfig
from outpace.models.gguf.checkpoint import read_gguf
from outpace.models.gguf.file import SUPPORTED_TYPES, GgufFile
from outpace.models.source import locate
from outpace.models.target import Target

K_QUANTS = ("Q4_K", "Q6_K")
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def tiny(architecture: str, **overrides: Any) -> PreTrainedModel:
    sizes: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "head_dim": 16,
    }
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[architecture](**{**sizes, **overrides}))
    randomise(model)
    reference: PreTrainedModel = model.eval()
    return reference


@pytest.fixture
def writing() -> GgufWriting:
    """A whole small llama, for tests that spoil it."""
    return model_file(tiny("llama", tie_word_embeddings=True), "llama")


@pytest.mark.parametrize("kind", SUPPORTED_TYPES)
def test_every_type_is_read_as_the_gguf_package_reads_it(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    writing = GgufWriting()
    if kind in K_QUANTS:
        writing.tensors["x"] = (random_blocks(kind, 12, rng), GGMLQuantizationType[kind])
    else:
        writing.put("x", rng.normal(size=(12, 256)), kind)
    path = writing.write(tmp_path / "x.gguf")
    expected = gguf.GGUFReader(path).tensors[0]
    found = GgufFile(path).load("x")
    assert found.shape == (12, 256)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, gguf.quants.dequantize(expected.data, expected.tensor_type))


def test_metadata_is_read_as_the_gguf_package_reads_it(tmp_path: Path) -> None:
    writing = GgufWriting()
    writing.metadata |= {
        "some.count": 7,
        "some.number": 0.5,
        "some.flag": True,
        "some.text": "žluťoučký 🐎",
        "some.texts": ["a", "", "日本"],
        "some.integers": [1, -2, 3],
        "some.numbers": [0.25, 2.0],
        "some.flags": [True, False],
        "some.nothing": "",
    }
    writing.put("x", np.ones((2, 3)))
    writing.put("y", np.ones(5))
    path = writing.write(tmp_path / "x.gguf")
    file, reader = GgufFile(path), gguf.GGUFReader(path)
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert {key: getattr(value, "tolist", lambda v=value: v)() for key, value in file.metadata.items()} == expected
    assert {name: (info.offset, info.num_bytes) for name, info in file.tensors.items()} == {
        tensor.name: (tensor.data_offset, tensor.n_bytes) for tensor in reader.tensors
    }


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_key_value_heads": 4}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen2", {}),
        ("qwen3", {"tie_word_embeddings": True}),
    ],
)
def test_weights_and_config_are_those_that_were_written(
    architecture: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    model = tiny(architecture, **overrides)
    checkpoint = read_gguf(model_file(model, architecture).write(tmp_path / "x.gguf"))
    expected = model.state_dict()
    if model.config.tie_word_embeddings:
        del expected["lm_head.weight"]
    assert set(checkpoint.tensors) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(checkpoint.tensors[name], tensor, rtol=0, atol=0)
    config = checkpoint.config
    assert (config.architecture, config.vocab_size, config.num_layers) == (architecture, 96, 2)
    assert (config.hidden_size, config.intermediate_size, config.head_dim) == (64, 96, 16)
    assert (config.num_heads, config.num_kv_heads) == (4, model.config.num_key_value_heads)
    assert (config.max_positions, config.windows) == (128, (None, None))
    assert config.eos_token_ids == (2,)
    assert config.tie_embeddings == model.config.tie_word_embeddings
    assert config.norm_eps == pytest.approx(model.config.rms_norm_eps)
    assert checkpoint.tokenizer is None


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@torch.inference_mode()
def test_logits_are_those_of_transformers_reading_the_same_file(architecture: str, kind: str, tmp_path: Path) -> None:
    path = model_file(tiny(architecture), architecture, kind).write(tmp_path / "x.gguf")
    assert_logits_equal(path, torch.randint(0, 96, (2, 24)), 1e-4, head_dim=16)


@pytest.mark.real_model
@torch.inference_mode()
def test_the_real_model_has_the_logits_of_transformers() -> None:
    assert_logits_equal(locate("smollm2").path, torch.randint(0, 49152, (2, 48)), 1e-3)


def assert_logits_equal(path: Path, tokens_BS: torch.Tensor, tolerance: float, **overrides: Any) -> None:
    checkpoint = read_gguf(path)
    target = Target(checkpoint.config, dtype=torch.float32)
    target.load(checkpoint.tensors)
    positions_BS = torch.arange(tokens_BS.shape[1]).expand_as(tokens_BS)
    hidden_BSH, _ = target(tokens_BS, positions_BS, DenseAttend(checkpoint.config.windows))
    expected = read_with_transformers(path, **overrides)(tokens_BS).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(target.logits(hidden_BSH), expected, atol=tolerance, rtol=0)


def read_with_transformers(path: Path, **overrides: Any) -> PreTrainedModel:
    """What `from_pretrained(gguf_file=…)` does; that call itself asks for the package accelerate.

    `overrides`: what transformers does not read from the metadata.
    """
    logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name, **overrides)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    reference: PreTrainedModel = model.eval()
    return reference


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    "scaling", [{}, {"factor": 32.0}, {"original_max_position_embeddings": 4096}, {"high_freq_factor": 8.0}]
)
def test_llama3_scaling_is_recovered_from_the_frequencies(
    scaling: dict[str, Any], head_dim: int, writing: GgufWriting, tmp_path: Path
) -> None:
    parameters = {"rope_type": "llama3", "rope_theta": 500_000.0, **LLAMA3, **scaling}
    writing = with_heads_of(head_dim)
    writing.metadata["llama.rope.freq_base"] = 500_000.0
    writing.put("rope_freqs.weight", llama3_divisors(parameters, head_dim))
    rope = read_gguf(writing.write(tmp_path / "x.gguf")).config.rope
    assert rope == RopeConfig(
        theta=500_000.0,
        kind="llama3",
        factor=parameters["factor"],
        low_freq_factor=1.0,
        high_freq_factor=parameters["high_freq_factor"],
        original_max_positions=parameters["original_max_position_embeddings"],
    )


def test_a_base_that_turns_nothing_slower_is_refused(writing: GgufWriting, tmp_path: Path) -> None:
    writing.metadata |= {"llama.rope.freq_base": 1.0, "llama.rope.scaling.type": "yarn"}
    with pytest.raises(CheckpointError, match=r"rope\.freq_base is 1\.0; it must be a number above 1, "):
        read_gguf(writing.write(tmp_path / "x.gguf"))


def with_heads_of(head_dim: int) -> GgufWriting:
    return model_file(tiny("llama", hidden_size=4 * head_dim, head_dim=head_dim), "llama")


def llama3_divisors(parameters: dict[str, Any], head_dim: int) -> np.ndarray[Any, Any]:
    """By transformers, which scales frequencies where llama.cpp's converter stores divisors."""
    config = transformers.LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, max_position_embeddings=131072, rope_parameters=parameters
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / parameters["rope_theta"] ** (torch.arange(0, head_dim, 2).float() / head_dim)
    divisors: np.ndarray[Any, Any] = (plain / scaled).numpy()
    return divisors


def test_divisors_of_one_are_no_scaling(writing: GgufWriting, tmp_path: Path) -> None:
    writing.put("rope_freqs.weight", np.ones(8))
    assert read_gguf(writing.write(tmp_path / "x.gguf")).config.rope.kind == "default"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"type": "linear", "factor": 4.0}, RopeConfig(kind="linear", factor=4.0)),
        ({"type": "none", "factor": 4.0}, RopeConfig()),
        ({"factor": 2.0}, RopeConfig(kind="linear", factor=2.0)),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32, "yarn_beta_fast": 16.0},
            RopeConfig(kind="yarn", factor=4.0, original_max_positions=32, beta_fast=16.0),
        ),
        ({"type": "yarn", "factor": 4.0}, RopeConfig(kind="yarn", factor=4.0, original_max_positions=128)),
    ],
)
def test_rope_scaling(metadata: dict[str, Any], expected: RopeConfig, writing: GgufWriting, tmp_path: Path) -> None:
    writing.metadata |= {f"llama.rope.scaling.{key}": value for key, value in metadata.items()}
    assert read_gguf(writing.write(tmp_path / "x.gguf")).config.rope == expected


@pytest.mark.parametrize(
    ("pattern", "windows"), [(None, (32, 32)), ([True, False], (32, None)), ([False, False], (None, None))]
)
def test_sliding_windows(
    pattern: list[bool] | None, windows: tuple[int | None, ...], writing: GgufWriting, tmp_path: Path
) -> None:
    writing.metadata["llama.attention.sliding_window"] = 32
    if pattern is not None:
        writing.metadata["llama.attention.sliding_window_pattern"] = pattern
    assert read_gguf(writing.write(tmp_path / "x.gguf")).config.windows == windows


def test_sizes_given_once_for_each_layer_are_one_size(writing: GgufWriting, tmp_path: Path) -> None:
    writing.metadata["llama.attention.head_count_kv"] = [2, 2]
    assert read_gguf(writing.write(tmp_path / "x.gguf")).config.num_kv_heads == 2


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "gemma3"}, "architecture 'gemma3'"),
        ({"llama.block_count": 3}, "block_count is 3"),
        ({"llama.block_count": 2**31}, "block_count is 2147483648"),
        ({"llama.embedding_length": 2**31}, "embedding_length is 2147483648"),
        ({"llama.embedding_length": 128}, r"token_embd.weight has shape \[96, 64\]"),
        ({"llama.context_length": 2**31}, "context_length is 2147483648"),
        ({"llama.feed_forward_length": 97}, "ffn_gate"),
        ({"llama.attention.head_count": 8}, "attn_q.weight has shape"),
        ({"llama.attention.head_count_kv": 3}, "cannot share 3"),
        ({"llama.attention.head_count_kv": [1, 2]}, "head_count_kv"),
        ({"llama.attention.value_length": 8}, "value_length is 8"),
        ({"llama.attention.scale": 0.5}, r"attention\.scale"),
        ({"llama.attention.causal": False}, "causal is False"),
        ({"llama.expert_count": 8}, "expert_count is 8"),
        ({"llama.context_length": 0}, "context_length is 0"),
        ({"llama.rope.dimension_count": 8}, "dimension_count is 8"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.5}, "factor 0.5"),
        ({"llama.rope.scaling.yarn_attn_factor": 0.7}, "yarn_attn_factor"),
        ({"llama.attention.sliding_window": 32, "llama.attention.sliding_window_pattern": 2}, "pattern is 2"),
        ({"tokenizer.ggml.eos_token_id": 96}, "ids 0 to 95"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"general.alignment": 48}, "alignment"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    metadata: dict[str, Any], message: str, writing: GgufWriting, tmp_path: Path
) -> None:
    writing.metadata |= metadata
    path = writing.write(tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match=message):
        read_gguf(path)


def test_blocks_without_end_are_refused(writing: GgufWriting, tmp_path: Path) -> None:
    writing.metadata["llama.block_count"] = 1_000_000
    writing.put("blk.999999.attn_norm.weight", np.ones(64))
    with pytest.raises(CheckpointError, match="block_count is 1000000; it must be a whole number in 1 … 1024"):
        read_gguf(writing.write(tmp_path / "x.gguf"))


def test_ends_of_text_of_turn_and_of_message_all_end_an_answer(writing: GgufWriting, tmp_path: Path) -> None:
    writing.metadata |= {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 2}
    checkpoint = read_gguf(writing.write(tmp_path / "x.gguf"))
    assert checkpoint.config.eos_token_ids == (2, 5)
    assert checkpoint.notes == (
        "answers end at token 2 (tokenizer.ggml.eos_token_id, tokenizer.ggml.eom_token_id); "
        "5 (tokenizer.ggml.eot_token_id)",
    )


@pytest.mark.parametrize("key", ["embedding_length", "context_length", "attention.layer_norm_rms_epsilon"])
def test_missing_metadata_is_named(key: str, writing: GgufWriting, tmp_path: Path) -> None:
    del writing.metadata[f"llama.{key}"]
    with pytest.raises(CheckpointError, match=key):
        read_gguf(writing.write(tmp_path / "x.gguf"))


def test_other_types_are_refused_with_the_tensor(writing: GgufWriting, tmp_path: Path) -> None:
    writing.put("blk.1.ffn_up.weight", np.ones((96, 64)), "Q5_0")
    with pytest.raises(CheckpointError, match=r"blk\.1\.ffn_up\.weight is of type Q5_0; supported are F32"):
        read_gguf(writing.write(tmp_path / "x.gguf"))


@pytest.mark.parametrize("name", ["blk.0.attn_sinks.weight", "output.bias", "rope_factors_long.weight", "blk.0.x"])
def test_tensors_that_would_be_lost_are_refused(name: str, writing: GgufWriting, tmp_path: Path) -> None:
    writing.put(name, np.ones(8))
    with pytest.raises(CheckpointError, match=name):
        read_gguf(writing.write(tmp_path / "x.gguf"))


@pytest.mark.parametrize(
    ("divisors", "message"),
    [
        (np.linspace(1.0, 3.0, 8), "does not follow Llama 3's formula"),
        (np.ones(7), "must hold 8 numbers"),
        (-np.ones(8), "must hold 8 numbers"),
    ],
)
def test_other_rope_tensors_are_refused(
    divisors: np.ndarray[Any, Any], message: str, writing: GgufWriting, tmp_path: Path
) -> None:
    writing.put("rope_freqs.weight", divisors)
    with pytest.raises(CheckpointError, match=message):
        read_gguf(writing.write(tmp_path / "x.gguf"))


def test_two_kinds_of_rope_scaling_are_refused(writing: GgufWriting, tmp_path: Path) -> None:
    writing.metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    writing.put("rope_freqs.weight", np.linspace(1.0, 8.0, 8))
    with pytest.raises(CheckpointError, match="linear rope scaling"):
        read_gguf(writing.write(tmp_path / "x.gguf"))


def test_permutation_is_llama_cpps() -> None:
    rows = np.arange(12)[:, None]
    assert permuted(rows, 2)[:6, 0].tolist() == [0, 3, 1, 4, 2, 5]


def header(*parts: bytes, tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


KEY = text("a.key")
HUGE = struct.pack("<Q", 2**60)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"GGUF", "the version"),
        (b"PK\x03\x04" + b"\0" * 100, "does not begin with 'GGUF'"),
        (header(version=1), "version 1"),
        (header(version=3 << 24), "big endian"),
        (header(tensors=2**60), "1152921504606846976 tensors"),
        (header(keys=2**60), "metadata keys"),
        (header(HUGE, keys=1), "needs 1152921504606846976 bytes"),
        (header(KEY, struct.pack("<I", 99), keys=1), "unknown type 99"),
        (header(KEY, struct.pack("<I", 8), HUGE, keys=1), "needs 1152921504606846976 bytes"),
        (header(KEY, struct.pack("<II", 9, 0), HUGE, keys=1), "elements in a.key"),
        (header(KEY, struct.pack("<IIQ", 9, 5, 1 << 22), keys=1), "needs 16777216 bytes"),
        (header(KEY, struct.pack("<I", 9), struct.pack("<IQ", 9, 1) * 6, keys=1), "nested too deep"),
        (header(struct.pack("<Q", 2), b"\xff\xfe", keys=1), "not UTF-8"),
        (header(KEY, struct.pack("<IB", 0, 1), KEY, struct.pack("<IB", 0, 1), keys=2), "a.key comes twice"),
        (header(text("x"), struct.pack("<I", 1 << 30), tensors=1), "1073741824 dimensions"),
        (header(text("x"), struct.pack("<IQIQ", 1, 2**62, 0, 0), tensors=1), r"shape \[4611686018427387904\] ends at"),
        (header(text("x"), struct.pack("<IQIQ", 1, 4, 0, 2**62), tensors=1), "ends at byte"),
        (header(text("x"), struct.pack("<IQIQ", 1, 0, 0, 0), tensors=1), "shape"),
        (header(text("x"), struct.pack("<IQIQ", 1, 33, 2, 0), tensors=1), "does not fit Q4_0's blocks"),
        (header(text("x"), struct.pack("<IQIQ", 1, 32, 0, 3), tensors=1), "does not fit F32's blocks"),
        (header(text("x"), struct.pack("<IQIQ", 1, 32, 77, 0), tensors=1), "type unknown"),
    ],
)
def test_broken_headers_are_refused_before_anything_is_allocated(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_gguf(path)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing\.gguf cannot be read"):
        read_gguf(tmp_path / "nothing.gguf")


def test_files_cut_anywhere_are_refused(writing: GgufWriting, tmp_path: Path) -> None:
    content = writing.write(tmp_path / "x.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for length in [*range(0, 2000, 37), *range(2000, len(content) - 1, 9973), len(content) - 64]:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            read_gguf(path)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(
    kind: str, number: float, writing: GgufWriting, tmp_path: Path
) -> None:
    name = "blk.1.ffn_up.weight"
    writing.put(name, np.ones((96, 64)), kind)
    data = writing.tensors[name][0]
    scale = data.view(np.float32 if kind == "F32" else np.float16)  # a block begins with its scale
    scale[0, 0] = number
    checkpoint = read_gguf(writing.write(tmp_path / "x.gguf"))
    with pytest.raises(CheckpointError, match=r"x\.gguf: tensor blk\.1\.ffn_up\.weight holds numbers that are not fin"):
        checkpoint.tensors["model.layers.1.mlp.up_proj.weight"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    torch.manual_seed(0)
    return model_file(tiny("llama", num_hidden_layers=1), "llama", "Q4_0").write(path).read_bytes()


@settings(max_examples=150, deadline=None)
@given(damage=st.lists(st.tuples(st.integers(0, 1800), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_files_are_read_or_refused_and_nothing_else(
    damage: list[tuple[int, int]], whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    damaged = bytearray(whole)
    for place, value in damage:
        damaged[place] = value
    path = tmp_path_factory.mktemp("damaged") / "x.gguf"
    path.write_bytes(damaged)
    try:
        checkpoint = read_gguf(path)
        assert sum(tensor.numel() for tensor in checkpoint.tensors.values()) < 8 * len(whole)
    except CheckpointError as error:
        assert str(path) in str(error)
