"""Ranks that are not alike are found out before they answer anything."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from distributed.test_ranks import OPTIONS, checkpoints, children
from outpace import LLM, EngineError
from outpace.engine.ranks import crew, likeness, start
from outpace.errors import CheckpointError
from outpace.models import sameness
from outpace.models.sameness import digest_of


def write(path: Path, size: int, **changed: bytes) -> Path:
    data = bytearray(i * 7 % 251 for i in range(size))
    for place, byte in changed.items():
        data[int(place.removeprefix("at_"))] = byte[0]
    path.write_bytes(data)
    return path


def test_other_weights_have_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for whole in (sameness._WHOLE, 1024):
        monkeypatch.setattr(sameness, "_WHOLE", whole)
        monkeypatch.setattr(sameness, "PIECE", 16)
        (tmp_path / "config.json").write_text("{}")
        write(tmp_path / "a.safetensors", 4096)
        digest = digest_of(tmp_path)
        (tmp_path / "README.md").write_text("not weights")
        assert digest_of(tmp_path) == digest
        for changed in ({"at_0": b"x"}, {"at_4095": b"x"}):
            write(tmp_path / "a.safetensors", 4096, **changed)
            assert digest_of(tmp_path) != digest
        write(tmp_path / "a.safetensors", 4097)
        assert digest_of(tmp_path) != digest
        write(tmp_path / "a.safetensors", 4096).rename(tmp_path / "b.safetensors")
        assert digest_of(tmp_path) != digest
        (tmp_path / "b.safetensors").rename(tmp_path / "a.safetensors")
        (tmp_path / "config.json").write_text("[]")
        assert digest_of(tmp_path) != digest


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be read .*config\.json"):
        digest_of(tmp_path)
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match=r"config\.json is no regular file"):
        digest_of(tmp_path)


def test_one_file_is_its_content_whatever_its_name(tmp_path: Path) -> None:
    assert digest_of(write(tmp_path / "a.gguf", 100)) == digest_of(write(tmp_path / "b.gguf", 100))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"versions": lambda: "Outpace 9.9"}, "rank 1 .*failed: it runs Outpace .*but rank 0 Outpace 9.9: install the"),
        (
            {"digests": lambda model, drafter: ("a", "b")},
            "rank 1 .*failed: its files of the model are not those of rank 0",
        ),
    ],
)
def test_ranks_that_are_not_alike_are_named(
    changed: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, drafter = checkpoints(tmp_path, "llama")
    for name, call in changed.items():
        for module in (likeness, crew, start):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, call)
    with pytest.raises(EngineError, match=says):
        LLM(target, drafter=drafter, tensor_parallel=2, **OPTIONS)
    assert not children(os.getpid())


def test_processes_have_ended_when_a_start_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever they hang: here they stand still."""
    target, _ = checkpoints(tmp_path, "llama")

    def stop(found: Sequence[str]) -> tuple[int, str]:
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGSTOP)
        return 1, "it stands still"

    monkeypatch.setattr(crew, "unlike_versions", stop)
    with pytest.raises(EngineError, match="it stands still"):
        LLM(target, drafter=None, tensor_parallel=2, **OPTIONS)
    assert not children(os.getpid())


def test_what_is_not_alike_is_said_of_the_drafter_too() -> None:
    assert likeness.unlike_files([("a", "b"), ("a", "b")]) is None
    assert likeness.unlike_files([("a", "b"), ("a", "b"), ("a", "c")]) == (
        2,
        "its files of the drafter are not those of rank 0: copy the same to every machine",
    )
    assert torch.__version__ in likeness.versions()
