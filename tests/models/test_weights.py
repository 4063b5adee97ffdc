"""Checkpoints that are broken: each is refused with the file or tensor named, and the harmless ones are not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.checkpoints import make_checkpoint
from outpace.errors import CheckpointError
from outpace.models.hf.config import read_target
from outpace.models.hf.weights import INDEX, SINGLE, read_safetensors
from outpace.models.registry import load_target
from outpace.models.source import locate
from outpace.models.target import Target

UP = "model.layers.1.mlp.up_proj.weight"


def load(directory: Path) -> Target:
    target = Target(read_target(directory)[0])
    target.load(read_safetensors(directory))
    return target


def rewrite(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(directory / SINGLE)
    change(tensors)
    save_file(tensors, directory / SINGLE)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors.pop(UP), UP),
        (lambda tensors: tensors.pop("lm_head.weight"), "lm_head.weight"),
        (lambda tensors: tensors.update({"model.layers.9.mlp.up_proj.weight": torch.zeros(2)}), "layers.9.mlp"),
        (lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(48)}), "q_proj.bias"),
        (lambda tensors: tensors.update({UP: torch.zeros(79, 48)}), rf"{UP} .*\[79, 48\].*\[80, 48\]"),
        (lambda tensors: tensors.update({UP: torch.zeros(80, 48, dtype=torch.int8)}), f"{UP} is torch.int8"),
        (lambda tensors: tensors.update({UP: torch.zeros(80, 48).to(torch.float8_e4m3fn)}), "float8.*quantised"),
        (lambda tensors: tensors[UP].__setitem__((3, 4), torch.nan), f"{UP} holds numbers that are not finite"),
        (lambda tensors: tensors[UP].__setitem__((3, 4), -torch.inf), f"{UP} holds numbers that are not finite"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    change: Callable[[dict[str, Tensor]], object], named: str, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, "llama")
    rewrite(tmp_path, change)
    with pytest.raises(CheckpointError, match=named):
        load(tmp_path)


def test_a_number_that_a_narrower_type_has_no_room_for_is_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    rewrite(tmp_path, lambda tensors: tensors[UP].__setitem__((3, 4), 1e5))
    load(tmp_path)
    with pytest.raises(CheckpointError, match=rf"{UP} .*not finite in torch\.float16: .*--dtype"):
        load_target(locate(str(tmp_path)), dtype=torch.float16, device="cpu")


def test_a_type_that_nobody_reads_is_named(tmp_path: Path) -> None:
    header = {"odd": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}
    text = json.dumps(header).encode()
    (tmp_path / SINGLE).write_bytes(len(text).to_bytes(8, "little") + text + b"000")
    with pytest.raises(CheckpointError, match=r"tensor odd cannot be read .*F6_E2M3"):
        read_safetensors(tmp_path)["odd"]


def test_sizes_that_no_memory_holds_are_said(tmp_path: Path) -> None:
    """Each is one that some model might have; all together are not."""
    make_checkpoint(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text()) | {"vocab_size": 1 << 22, "hidden_size": 1 << 18}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"describes weights of 8797\.7 GB in torch.float32, .* no memory on cpu"):
        load_target(locate(str(tmp_path)), dtype=torch.float32, device="cpu")


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    rewrite(tmp_path, lambda tensors: [tensors.pop(name) for name in list(tensors) if "layers.2" in name])
    with pytest.raises(CheckpointError, match=r"lacks model\.layers\.2.* and 5 more"):
        load(tmp_path)


def test_old_rope_buffers_and_a_tied_head_are_ignored(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    rewrite(tmp_path, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}))
    assert torch.equal(load(tmp_path).lm_head.weight, model.model.embed_tokens.weight)
    rewrite(tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(131, 48)}))
    assert torch.equal(load(tmp_path).lm_head.weight, model.model.embed_tokens.weight)


def test_a_mapping_is_read_one_tensor_at_a_time(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", shard_size="60KB")
    tensors = read_safetensors(tmp_path)
    assert len(tensors) == len(list(tensors)) == 3 + 4 * 9
    assert tensors[UP].shape == (80, 48)
    num_weights = sum(parameter.numel() for parameter in load(tmp_path).parameters())
    assert sum(tensors[name].numel() for name in tensors) == num_weights


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", shard_size="60KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=shard.name):
        read_safetensors(tmp_path)


def test_a_shard_that_lacks_its_tensor_is_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", shard_size="60KB")
    index = json.loads((tmp_path / INDEX).read_text())
    shard = index["weight_map"][UP]
    tensors = load_file(tmp_path / shard)
    tensors.pop(UP)
    save_file(tensors or {"other": torch.zeros(1)}, tmp_path / shard)
    with pytest.raises(CheckpointError, match=rf"{shard} lacks {UP}"):
        read_safetensors(tmp_path)


def test_an_index_cannot_reach_outside_its_directory(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "other", "llama")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / INDEX).write_text(json.dumps({"weight_map": {UP: f"../other/{SINGLE}"}}))
    with pytest.raises(CheckpointError, match=r"\.\./other"):
        read_safetensors(inside)


@pytest.mark.parametrize("shard", ["/etc/x.safetensors", "..", "", "a\0b", "x" * 5000, 3, ["a"]])
def test_an_index_can_name_only_files_beside_it(shard: object, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", shard_size="60KB")
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"][UP] = shard
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"index\.json names .* which is not in"):
        read_safetensors(tmp_path)


@pytest.mark.parametrize("where", ["no shard", "another"])
def test_what_a_shard_holds_beyond_its_index_is_not_ignored(where: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", shard_size="60KB")
    weight_map = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    shard = next(name for name in weight_map.values() if name != weight_map[UP])
    extra, held = ("cheese", "no shard") if where == "no shard" else (UP, weight_map[UP])
    save_file(load_file(tmp_path / shard) | {extra: torch.zeros(80, 48)}, tmp_path / shard)
    with pytest.raises(CheckpointError, match=rf"{shard} holds {extra}, which .* says is in {held}"):
        read_safetensors(tmp_path)


def test_pipes_and_directories_are_not_read(tmp_path: Path) -> None:
    """A pipe would be waited for without end; a link to a file elsewhere is how the hub's cache keeps shards."""
    make_checkpoint(tmp_path, "llama")
    (tmp_path / SINGLE).rename(tmp_path / "blob")
    (tmp_path / SINGLE).symlink_to(tmp_path / "blob")
    load(tmp_path)
    for make in (os.mkfifo, os.mkdir):
        (tmp_path / SINGLE).unlink()
        make(tmp_path / SINGLE)
        with pytest.raises(CheckpointError, match=f"{SINGLE} is no regular file"):
            read_safetensors(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": 3}'])
def test_a_broken_index_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match=INDEX):
        read_safetensors(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_truncated_file_is_named(keep: int, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    path = tmp_path / SINGLE
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=f"{SINGLE} .*fetch it again"):
        read_safetensors(tmp_path)


def test_pickles_are_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pickles.*save_pretrained"):
        read_safetensors(tmp_path)


def test_an_empty_directory_and_an_ambiguous_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no safetensors file"):
        read_safetensors(tmp_path)
    for name in ("a", "b"):
        save_file({"x": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match=f"2 safetensors files and no {INDEX}"):
        read_safetensors(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    assert list(read_safetensors(tmp_path)) == ["x"]
