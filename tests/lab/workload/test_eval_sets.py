from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from outpace.errors import ConfigError
from outpace.lab.workload.eval_sets import SETS, load
from outpace.lab.workload.wheels import Wheel, read_member


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path))
    return tmp_path / "outpace"


@pytest.fixture
def wheel(cache: Path) -> Wheel:
    """A package with one data file, in the cache."""
    path = cache / "wheels" / "facts-1.0-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("facts/data.txt", "water is wet")
    return Wheel(package="facts", version="1.0", file=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_cached_wheel_is_read_without_a_network(wheel: Wheel) -> None:
    assert read_member(wheel, "facts/data.txt") == b"water is wet"


def test_another_file_than_the_pinned_one_is_refused(wheel: Wheel, cache: Path) -> None:
    with zipfile.ZipFile(cache / "wheels" / wheel.file, "a") as archive:
        archive.writestr("facts/more.txt", "and wetter")
    with pytest.raises(ConfigError, match="sha256"):
        read_member(wheel, "facts/data.txt")


def test_what_cannot_be_fetched_says_how_to_help(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    absent = Wheel(package="absent", version="0", file="absent-0.whl", sha256="0")
    with pytest.raises(ConfigError, match=r"put absent-0\.whl into"):
        read_member(absent, "x")


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(ConfigError, match="mt_bench, humaneval, gsm8k"):
        load("mmlu")


@pytest.mark.real_model
@pytest.mark.parametrize(("name", "size"), [("mt_bench", 80), ("humaneval", 164), ("gsm8k", 100)])
def test_the_real_sets(name: str, size: int) -> None:
    prompts = load(name)
    assert len(prompts) == size
    assert len({prompt.id for prompt in prompts}) == size
    assert all(prompt.user.strip() for prompt in prompts)
    assert all((prompt.followup is not None) == (name == "mt_bench") for prompt in prompts)
    spread = load(name, 5)
    assert [p.id for p in spread] == [prompts[i * size // 5].id for i in range(5)]


@pytest.mark.real_model
def test_humaneval_asks_for_the_function() -> None:
    first = load("humaneval", 1)[0]
    assert first.user.startswith("Complete the following Python function.")
    assert "def has_close_elements" in first.user
    assert first.messages == [{"role": "user", "content": first.user}]


def test_the_sets_are_named_once() -> None:
    assert len(set(SETS)) == len(SETS) == 3
