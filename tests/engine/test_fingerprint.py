from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

import outpace
from outpace.engine import fingerprint


def test_it_is_json_and_names_what_matters() -> None:
    facts = json.loads(json.dumps(fingerprint.machine()))
    assert facts["cores"] >= 1
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == torch.get_num_threads()
    assert facts["outpace"] == outpace.__version__
    assert facts["cpu"]
    assert isinstance(facts["gpus"], list)


def test_the_commit_is_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*args: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *args], check=True, capture_output=True)

    package = tmp_path / "src" / "outpace"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(fingerprint, "PACKAGE", package)
    git("init")
    git("add", ".")
    git("commit", "-m", "x")
    clean = fingerprint.commit()
    assert clean is not None
    assert len(clean) == 12
    (package / "__init__.py").write_text("changed")
    assert fingerprint.commit() == f"{clean}+changes"


def test_a_package_inside_somebody_elses_checkout_has_no_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    subprocess.run(["git", "-C", str(tmp_path), "init"], check=True, capture_output=True)
    package = tmp_path / ".venv" / "outpace"
    package.mkdir(parents=True)
    monkeypatch.setattr(fingerprint, "PACKAGE", package)
    assert fingerprint.commit() is None


def test_one_line_for_people() -> None:
    facts = {"cpu": "Some CPU", "cores": 2, "torch": "2.13.0", "threads": 2, "python": "3.11.7", "gpus": []}
    assert fingerprint.one_line(facts) == "Some CPU, 2 cores · torch 2.13.0, 2 threads · Python 3.11.7"
    assert fingerprint.one_line({**facts, "gpus": [{"name": "NVIDIA H200"}]}).startswith("NVIDIA H200 ·")
