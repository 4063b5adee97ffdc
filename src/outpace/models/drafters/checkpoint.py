"""Drafter checkpoints on disk: reading every dialect, writing SpecForge's.

What is written loads in SGLang, vLLM and here: `midlayer.*` names, `d2t` as offsets beside `t2d`, and the taps twice,
as SGLang and as vLLM read them (see `taps`). The target's embeddings are not written; engines share them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from outpace.errors import CheckpointError, DrafterError
from outpace.models.arch import RopeConfig
from outpace.models.drafter import Drafter
from outpace.models.drafters.dialects import Resolved, resolve
from outpace.models.drafters.taps import IDS
from outpace.models.fields import read_json
from outpace.models.fresh import MIDLAYER
from outpace.models.hf.weights import INDEX, SINGLE, read_safetensors
from outpace.models.loading import Slot
from outpace.models.source import locate
from outpace.models.target import Target
from outpace.models.wiring import DrafterWiring

PICKLE = "pytorch_model.bin"
DRAFTER_FILES = ("*.safetensors", "*.json", PICKLE)
"""What is fetched from the hub for a drafter."""

_ROWS_AT_ONCE = 8192


def load_drafter(
    source: str | Path,
    target: Target,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    aux_boundaries: Sequence[int] | None = None,
    taken: Callable[[], None] | None = None,
) -> Drafter:
    """Reads a drafter of any dialect. It is not packed.

    Args:
        source: a directory, or a hub id owner/name.
        target: what it is to draft for; embeddings that equal the target's are shared with it.
        dtype, device: of its weights; the target's dtype if it uses any of the target's parts.
        aux_boundaries: taps, in the order `fc` takes them, when the config's or the default are wrong.
        taken: called after each tensor.

    Raises:
        DrafterError: it cannot be read, is of another method, or contradicts itself or the target.
    """
    try:
        found = locate(str(source), DRAFTER_FILES)
        if found.kind != "directory":
            raise DrafterError("it is a GGUF file; drafters are read from safetensors")
        config = read_json(found.path / "config.json")
        resolved = resolve(config, read_tensors(found.path), target.config, aux_boundaries=aux_boundaries)
        resolved = _share_embedding(resolved, target)
        drafter = Drafter(resolved.wiring, target, resolved.target_ids_V, dtype=dtype, device=device)
        drafter.load(resolved.tensors, taken)
    except CheckpointError as error:
        raise DrafterError(f"drafter {source}: {error}") from error
    return drafter


def read_tensors(directory: Path) -> Mapping[str, Tensor]:
    """Safetensors, or SafeAILab's pickle, of which nothing but tensors is accepted."""
    path = directory / PICKLE
    if any(directory.glob("*.safetensors")) or not path.exists():
        return read_safetensors(directory)
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    except Exception as error:  # a broken or hostile pickle may raise anything
        reason = str(error).partition("\n")[0]
        raise DrafterError(f"{path} cannot be read as tensors alone ({reason}); fetch it again") from error
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise DrafterError(f"{path} holds more than named tensors; it is a training state, not a drafter")
    return tensors


def _is_zip(path: Path) -> bool:
    """Files of torch before 1.6 are no archives and cannot be mapped."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _share_embedding(resolved: Resolved, target: Target) -> Resolved:
    """Drops a copy of the target's embeddings, which many trainers write out."""
    name, weight = "embed_tokens.weight", target.embed.weight
    if resolved.wiring.embedding == "target" or not _same(resolved.tensors[name], weight):
        return resolved
    wiring = replace(resolved.wiring, embedding="target", embedding_source="the target's, of which the file has a copy")
    return replace(resolved, wiring=wiring, tensors=resolved.tensors.without(name))


def _same(copy: Tensor, weight: Tensor) -> bool:
    """Equal in the weight's dtype. Compared piece by piece: a vocabulary may take gigabytes."""
    if copy.shape != weight.shape:
        return False
    pieces = zip(copy.split(_ROWS_AT_ONCE), weight.split(_ROWS_AT_ONCE), strict=True)
    return all(torch.equal(a.to(b.device, b.dtype), b) for a, b in pieces)


def save_drafter(drafter: Drafter, directory: Path, *, shard_bytes: int = 5 << 30) -> None:
    """Writes a drafter in SpecForge's dialect; weight files of an earlier save are replaced.

    A layer with norms of its heads (Qwen3 style) or with `norm_before_residual` is written too, but SGLang's EAGLE-3
    layer has neither.

    Args:
        drafter: not packed.
        directory: is made if need be.
        shard_bytes: largest weight file, unless one tensor is larger.

    Raises:
        DrafterError: it has latent attention.
    """
    assert drafter.mlp.down.prepacked is None, "a packed drafter has no plain weights"
    if drafter.wiring.shape.latent is not None:
        raise DrafterError("SpecForge's dialect has no latent attention: a drafter that has it cannot be saved")
    directory.mkdir(parents=True, exist_ok=True)
    slots = drafter.slots(MIDLAYER).items()
    tensors = {name: slot.tensor.detach() for name, slot in slots if isinstance(slot, Slot)}  # all of a drafter's
    tensors |= _vocabulary_maps(drafter)
    shards = _shards(tensors, shard_bytes)
    names = _file_names(len(shards))
    for name, shard in zip(names, shards, strict=True):
        _replace(directory / name, {key: value.cpu().contiguous().clone() for key, value in shard.items()})
    _write_index(directory, names, shards)
    for path in directory.glob("model*.safetensors"):
        if path.name not in names:
            path.unlink()
    _write_json(directory / "config.json", config_json(drafter.wiring, _dtype(drafter)))


def _file_names(count: int) -> list[str]:
    return [SINGLE] if count == 1 else [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]


def _dtype(drafter: Drafter) -> str:
    return str(drafter.norm.weight.dtype).removeprefix("torch.")


def _vocabulary_maps(drafter: Drafter) -> dict[str, Tensor]:
    """d2t as int64 offsets and t2d as booleans; nothing for a whole vocabulary in order."""
    ids_V = drafter.target_ids_V.cpu()
    if torch.equal(ids_V, torch.arange(drafter.wiring.vocab_size)):
        return {}
    t2d = torch.zeros(drafter.wiring.vocab_size, dtype=torch.bool)
    t2d[ids_V] = True
    return {"d2t": ids_V - torch.arange(len(ids_V)), "t2d": t2d}


def _shards(tensors: Mapping[str, Tensor], shard_bytes: int) -> list[dict[str, Tensor]]:
    """In order, a new file whenever the next tensor does not fit."""
    shards: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if shards[-1] and used + size > shard_bytes:
            shards.append({})
            used = 0
        shards[-1][name] = tensor
        used += size
    return shards


def _replace(path: Path, tensors: dict[str, Tensor]) -> None:
    """A file is whole or not there, and may be read by whom other files that this process writes may be read by."""
    partial = path.with_name(f"{path.name}.partial")
    partial.touch()
    mode = partial.stat().st_mode  # the library makes a file for its owner alone
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.chmod(mode)
    partial.replace(path)


def _write_index(directory: Path, names: list[str], shards: list[dict[str, Tensor]]) -> None:
    if len(names) == 1:
        (directory / INDEX).unlink(missing_ok=True)
        return
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    total = sum(tensor.numel() * tensor.element_size() for shard in shards for tensor in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(directory / INDEX, index)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def config_json(wiring: DrafterWiring, dtype: str) -> dict[str, Any]:
    """The config.json that SpecForge would write, with vLLM's own field for the taps beside SGLang's."""
    shape = wiring.shape
    values: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.norm_eps,
        "attention_bias": shape.qkv_bias,
        "mlp_bias": shape.mlp_bias,
        "max_position_embeddings": wiring.max_positions,
        "vocab_size": wiring.vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        **_rope_json(wiring.rope),
        "eagle_config": {"use_aux_hidden_state": True, IDS: [boundary - 1 for boundary in wiring.aux_boundaries]},
        IDS: list(wiring.aux_boundaries),
    }
    if wiring.lm_head == "own":
        values["draft_vocab_size"] = wiring.draft_vocab_size
    if wiring.target_hidden_size != shape.hidden_size:
        values["target_hidden_size"] = wiring.target_hidden_size
    flags = {
        "norm_before_residual": wiring.norm_before_residual,
        "norm_output": wiring.norm_output,
        "norm_before_fc": wiring.fusion_norm == "whole",
        "fc_norm": wiring.fusion_norm == "per_tap",
    }
    return values | {name: True for name, on in flags.items() if on}


def _rope_json(rope: RopeConfig) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling`, which every version of transformers reads."""
    scaling: dict[str, Any] | None = None
    if rope.kind != "default":
        scaling = {"rope_type": rope.kind, "factor": rope.factor}
    if scaling is not None and rope.kind in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = rope.original_max_positions
    if scaling is not None and rope.kind == "llama3":
        scaling |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if scaling is not None and rope.kind == "yarn":
        scaling |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow}
        scaling |= {} if rope.truncate else {"truncate": False}
        scaling |= {} if rope.attention_factor is None else {"attention_factor": rope.attention_factor}
    return {"rope_theta": rope.theta, "rope_scaling": scaling}
