"""A GGUF file as a target: its config, its weights under transformers' names, and its tokenizer.

llama.cpp turns rotary pairs that lie next to each other, transformers pairs from the two halves of a head; its
converter therefore reorders the rows of q and k of the llama architecture (Mistral's too), and here they are put back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from outpace.errors import CheckpointError
from outpace.models.arch import TargetConfig
from outpace.models.gguf.config import read_config
from outpace.models.gguf.file import GgufFile
from outpace.models.gguf.rope import FREQUENCY_DIVISORS
from outpace.models.text.tokenizer import Tokenizer

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_IN_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """What `read_gguf` found."""

    config: TargetConfig
    tensors: Mapping[str, Tensor]
    """float32, dequantised each time one is asked for."""
    tokenizer: Tokenizer | None
    """None if the file has no vocabulary."""
    notes: tuple[str, ...]


def read_gguf(path: Path | str) -> GgufCheckpoint:
    """Reads a .gguf file; weights stay on the disk until they are asked for.

    Raises:
        CheckpointError: broken, of an unsupported architecture, feature, tensor type or tokenizer; it says which.
    """
    file = GgufFile(Path(path))
    config, notes = read_config(file)
    tokenizer = Tokenizer.from_gguf_fields(file.metadata, file.path)
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{path}: the vocabulary has {tokenizer.vocab_size} tokens, the embedding only {config.vocab_size} rows"
        )
    return GgufCheckpoint(config, GgufTensors(file, config), tokenizer, notes)


class GgufTensors(Mapping[str, Tensor]):
    """A file's tensors by their transformers names, each read and dequantised when it is asked for.

    Raises:
        CheckpointError: a tensor has no counterpart in these architectures.
    """

    def __init__(self, file: GgufFile, config: TargetConfig) -> None:
        self._file, self._config = file, config
        self._sources = {_name(name, file): name for name in file.tensors if name != FREQUENCY_DIVISORS}

    def __getitem__(self, name: str) -> Tensor:
        tensor = torch.from_numpy(self._file.load(self._sources[name]))
        if self._config.architecture != "llama":
            return tensor
        if ".q_proj." in name:
            return _unpermuted(tensor, self._config.num_heads)
        return _unpermuted(tensor, self._config.num_kv_heads) if ".k_proj." in name else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def __contains__(self, name: object) -> bool:
        return name in self._sources


def _name(name: str, file: GgufFile) -> str:
    if (found := _IN_LAYER.fullmatch(name)) and found[2] in _LAYER_NAMES:
        return f"model.layers.{found[1]}.{_LAYER_NAMES[found[2]]}.{found[3]}"
    stem, _, kind = name.rpartition(".")
    if stem in _NAMES and kind == "weight":
        return f"{_NAMES[stem]}.{kind}"
    raise CheckpointError(f"{file.path}: tensor {name} belongs to no supported architecture; its effect would be lost")


def _unpermuted(rows: Tensor, num_heads: int) -> Tensor:
    """Rows of a head from (pair, half) order back to (half, pair). Weights [heads · D, H] and biases [heads · D]."""
    if rows.shape[0] % (2 * num_heads):
        return rows  # misshaped; whoever loads it says so with its name
    by_pair = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return by_pair.transpose(1, 2).reshape(rows.shape)
