"""GGUF files for tests, written by the `gguf` package: its names for the tensors, llama.cpp's order of q and k rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from transformers import PreTrainedModel

Array = npt.NDArray[Any]

MODEL_ARCH = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}


class GgufWriting:
    """Collects metadata and tensors; `write` makes the file."""

    def __init__(self, architecture: str = "llama") -> None:
        self.metadata: dict[str, Any] = {"general.architecture": architecture}
        self.tensors: dict[str, tuple[Array, GGMLQuantizationType | None]] = {}

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.metadata["general.architecture"])
        for key, value in self.metadata.items():
            if key != "general.architecture":
                _add(writer, key, value)
        for name, (data, kind) in self.tensors.items():
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def put(self, name: str, data: Array, kind: str = "F32") -> None:
        number = GGMLQuantizationType[kind]
        self.tensors[name] = (gguf.quants.quantize(data.astype(np.float32), number), number)


def model_file(model: PreTrainedModel, architecture: str, kind: str = "F32") -> GgufWriting:
    """The file that llama.cpp's converter makes of a transformers model, without a tokenizer."""
    config = model.config
    writing = GgufWriting(architecture)
    writing.metadata |= {f"{architecture}.{key}": value for key, value in _sizes(config).items()}
    writing.metadata |= {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    names = gguf.get_tensor_name_map(MODEL_ARCH[architecture], config.num_hidden_layers)
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = parameter.float().numpy()
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            data = permuted(data, heads)
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None
        writing.put(found, data, kind if data.ndim == 2 else "F32")
    return writing


def permuted(rows: Array, num_heads: int) -> Array:
    """llama.cpp's `LlamaModel.permute`."""
    split = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    swapped: Array = split.swapaxes(1, 2).reshape(rows.shape)
    return swapped


def random_blocks(kind: str, num_blocks: int, rng: np.random.Generator) -> Array:
    """Rows of one block of a K-quant, which the `gguf` package cannot make; their float16 scales are finite."""
    _, size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (num_blocks, size), dtype=np.uint8)
    scales = rng.uniform(-0.01, 0.01, (num_blocks, 2)).astype(np.float16).view(np.uint8)
    if kind == "Q4_K":
        blocks[:, :4] = scales
    else:
        assert kind == "Q6_K"
        blocks[:, -2:] = scales[:, :2]
    return blocks


def _sizes(config: Any) -> Mapping[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.hidden_size // config.num_attention_heads,
        "attention.value_length": config.hidden_size // config.num_attention_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
