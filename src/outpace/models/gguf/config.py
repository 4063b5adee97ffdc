"""The header of a GGUF file → `TargetConfig`.

Whatever the metadata asks for that the model cannot do is refused by its key. Sizes are checked against the tensors
that are in the file, so that a corrupt header never decides how much memory a model takes.
"""

from __future__ import annotations

import re

import numpy as np

from outpace.errors import CheckpointError
from outpace.models.arch import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH, TargetConfig
from outpace.models.ends import Ends, resolve_ends
from outpace.models.fields import Fields
from outpace.models.gguf.file import GgufFile
from outpace.models.gguf.rope import read_rope

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""`general.architecture`. Mistral's files call themselves llama."""

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""End of text, of turn and of message: each of them ends an answer, as in transformers' generation_config."""

_NEUTRAL: dict[str, tuple[float, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.temperature_scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.alpha": (0.0, 1.0),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "use_parallel_residual": (False,),
}
"""What the model does not do, and the values at which it need not."""


def read_config(file: GgufFile) -> tuple[TargetConfig, tuple[str, ...]]:
    """What the target is, and a sentence that says what ends an answer.

    Raises:
        CheckpointError: an unsupported architecture or feature, or sizes that its tensors do not have; names the key.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"{file.path}: architecture {architecture!r} is not supported; {', '.join(ARCHITECTURES)} are "
            "(Mistral's files are llama)"
        )
    fields = file.fields(architecture + ".")
    fields = Fields({key: _uniform(value) for key, value in fields.values.items()}, fields.origin)
    _refuse_extras(file, fields)
    ends = _ends(file)
    config = _config(file, fields, architecture, ends.token_ids)
    _check_sizes(file, config)
    return config, (ends.note,)


def _ends(file: GgufFile) -> Ends:
    found = ((key, _token_id(file, key)) for key in _END_KEYS)
    named = [(f"tokenizer.ggml.{key}", () if token is None else (token,)) for key, token in found]
    return resolve_ends(named, _rows(file, "token_embd.weight"))


def _config(file: GgufFile, fields: Fields, architecture: str, eos_token_ids: tuple[int, ...]) -> TargetConfig:
    hidden = fields.integer("embedding_length", maximum=MAX_WIDTH)
    num_heads = fields.integer("attention.head_count", maximum=MAX_HEADS)
    num_layers = fields.integer("block_count", maximum=MAX_LAYERS)
    if num_layers != _num_blocks(file):
        raise CheckpointError(
            f"{fields.origin}: block_count is {num_layers}; the file holds tensors of {_num_blocks(file)} blocks"
        )
    head_dim = fields.integer("attention.key_length", max(1, hidden // num_heads), maximum=MAX_HEAD_DIM)
    _check_head(fields, head_dim)
    max_positions = fields.integer("context_length", maximum=MAX_POSITIONS)
    return TargetConfig(
        architecture=architecture,
        vocab_size=_rows(file, "token_embd.weight"),
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        intermediate_size=fields.integer("feed_forward_length", maximum=MAX_WIDTH),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=read_rope(file, fields, head_dim, max_positions),
        max_positions=max_positions,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        tie_embeddings="output.weight" not in file.tensors,
        windows=_windows(fields, num_layers),
        eos_token_ids=eos_token_ids,
    )


def _check_head(fields: Fields, head_dim: int) -> None:
    if (of_values := fields.integer("attention.value_length", head_dim)) != head_dim:
        raise CheckpointError(f"{fields.origin}: attention.value_length is {of_values}; keys have {head_dim}")
    scale = fields.get("attention.scale")
    if scale and abs(scale * head_dim**0.5 - 1.0) > 1e-6:
        raise CheckpointError(f"{fields.origin}: attention.scale is {scale}; only head_dim**-0.5 is supported")


def _refuse_extras(file: GgufFile, fields: Fields) -> None:
    parts = file.metadata.get("split.count")
    if parts not in (None, 0, 1):
        raise CheckpointError(f"{file.path}: it is one of {parts} parts; join them with llama-gguf-split --merge")
    for key, neutral in _NEUTRAL.items():
        value = fields.get(key)
        if value is not None and not any(np.array_equal(value, number) for number in neutral):
            raise CheckpointError(f"{fields.origin}: {key} is {value!r}; the model needs it, and it is not supported")


def _windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Sliding windows in tokens. The pattern, if there is one, says which layers slide."""
    if not fields.get("attention.sliding_window"):
        return (None,) * num_layers
    window = fields.integer("attention.sliding_window")
    pattern = fields.get("attention.sliding_window_pattern")
    if pattern is None:
        return (window,) * num_layers
    if not isinstance(pattern, np.ndarray) or pattern.dtype != bool or len(pattern) != num_layers:
        raise CheckpointError(
            f"{fields.origin}: attention.sliding_window_pattern is {pattern!r}; it must be true or false for each layer"
        )
    return tuple(window if slides else None for slides in pattern.tolist())


def _check_sizes(file: GgufFile, config: TargetConfig) -> None:
    hidden, head_dim = config.hidden_size, config.head_dim
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(f"{file.path}: {config.num_heads} heads cannot share {config.num_kv_heads} KV heads")
    if head_dim % 2:
        raise CheckpointError(f"{file.path}: heads of {head_dim} dimensions cannot be rotated; they must be even")
    expected = {
        "token_embd.weight": (config.vocab_size, hidden),
        "blk.0.attn_q.weight": (config.num_heads * head_dim, hidden),
        "blk.0.attn_k.weight": (config.num_kv_heads * head_dim, hidden),
        "blk.0.ffn_gate.weight": (config.intermediate_size, hidden),
    }
    for name, shape in expected.items():
        found = file.tensors[name].shape if name in file.tensors else None
        if found != shape:
            shown = "is missing" if found is None else f"has shape {list(found)}"
            raise CheckpointError(f"{file.path}: tensor {name} {shown}; the metadata asks for {list(shape)}")


def _uniform(value: object) -> object:
    """A whole number that is given once for each layer, as one number if it is the same in all."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and len(set(value.tolist())) == 1:
        return value[0].item()
    return value


def _num_blocks(file: GgufFile) -> int:
    numbers = [int(found[1]) for name in file.tensors if (found := re.match(r"blk\.(\d{1,6})\.", name))]
    return max(numbers, default=-1) + 1


def _rows(file: GgufFile, name: str) -> int:
    if name not in file.tensors:
        raise CheckpointError(f"{file.path}: tensor {name} is missing; the file holds no language model")
    return file.tensors[name].shape[0]


def _token_id(file: GgufFile, key: str) -> int | None:
    """A token's id in the metadata. Converters write 2**32 - 1 for none."""
    value = file.metadata.get(f"tokenizer.ggml.{key}")
    if value is None or value == 0xFFFFFFFF:
        return None
    size = _rows(file, "token_embd.weight")
    if not isinstance(value, int) or not 0 <= value < size:
        raise CheckpointError(f"{file.path}: tokenizer.ggml.{key} is {value!r}; the vocabulary has ids 0 to {size - 1}")
    return value
