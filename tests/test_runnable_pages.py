"""What docs/python.md, docs/install.md and the README show runs as it stands, on the real small model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outpace import LLM, RequestError, RequestStats, Result, errors
from outpace.engine.results import Chunk
from outpace.models.smollm2 import cache_directory

ROOT = Path(__file__).parent.parent


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)


@pytest.mark.real_model
def test_the_python_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = {}
    for block in blocks("docs/python.md", "python"):
        exec(compile(block, "docs/python.md", "exec"), found)
    assert isinstance(found["llm"], LLM)
    assert found["chunk"].finish_reason in ("stop", "length")
    assert isinstance(found["city"], str)
    printed = capsys.readouterr()
    assert "max_tokens is 0" in printed.out and "3/3 answers" in printed.err


@pytest.mark.real_model
def test_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("README.md", "python")
    exec(compile(block, "README.md", "exec"), found := {})
    assert found["result"].text in capsys.readouterr().out


@pytest.mark.parametrize("kind", [Result, Chunk])
def test_the_table_of_the_python_page_names_every_field(kind: type) -> None:
    section = page("docs/python.md").split("## What comes back")[1].split("\n\n")[0]
    named = {name for cell in re.findall(r"^\|(.*?)\|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)}
    fields = set(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    assert fields <= named <= fields | {"prompt_ids"}


def test_the_python_page_names_every_error_and_figures_that_there_are() -> None:
    text = page("docs/python.md")
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.OutpaceError):
            assert f"`{name}`" in text or f"`{name}`s" in text, name
    (figures,) = re.findall(r"^`RequestStats` is.*?\.$", text, re.DOTALL | re.MULTILINE)
    for name in set(re.findall(r"`(\w+)(?:\(\))?`", figures)) - {"RequestStats"}:
        assert hasattr(RequestStats, name), name
    assert issubclass(RequestError, ValueError)


@pytest.mark.real_model
def test_the_commands_of_the_install_page_run(tmp_path: Path) -> None:
    """The cache that is there is lent, so that nothing is fetched anew."""
    (tmp_path / "bin").mkdir()
    for name, words in {"outpace": "-m outpace.cli.main", "python": ""}.items():
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    LLM("smollm2", max_context=64, num_pages=8, drafter=None)  # it is in the cache now
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "outpace").symlink_to(cache_directory())
    env = os.environ | {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    script = "\n".join(blocks("docs/install.md", "sh"))
    done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ".gguf" in done.stdout.splitlines()[-2]


def test_the_cache_is_where_the_install_page_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = page("docs/install.md").split("## Where files lie")[1].split("\n\n")[0]
    assert "`~/.cache/outpace`" in table and "`OUTPACE_CACHE` or `XDG_CACHE_HOME`: `outpace` in it" in table
    for name in ("OUTPACE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_directory() == Path.home() / ".cache" / "outpace"
    for name in ("XDG_CACHE_HOME", "OUTPACE_CACHE"):  # the last one wins
        monkeypatch.setenv(name, str(tmp_path / name))
        assert cache_directory() == tmp_path / name / "outpace"
