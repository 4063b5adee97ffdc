"""`scripts/setup` with an interpreter that only writes down what it is asked: what is installed, and what is said."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INTERPRETER = """\
#!/bin/sh
case "$1 $2" in
  "-m venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  "-m pip") shift 2; echo "$@" >> asked; echo "WARNING: Retrying (4 left)" >&2; exit "$PIP_EXIT" ;;
  "--version ") echo "Python 3.11.0" ;;
  "-c "*) case "$3" in http*) exit "$REACHED_EXIT" ;; esac ;;
esac
"""
MACHINE = {"uname": "echo Linux x86_64", "nvidia-smi": "exit 1", "python3": INTERPRETER}


def set_up(folder: Path, *, reached: bool, pip_exit: int = 0) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What the script said, and what pip was asked."""
    (folder / "bin").mkdir()
    for name, text in MACHINE.items():
        (folder / "bin" / name).write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup", folder / "scripts")
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    env = {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PIP_EXIT": str(pip_exit),
        "REACHED_EXIT": str(int(not reached)),
    }
    done = subprocess.run([folder / "scripts" / "setup"], env=env, capture_output=True, text=True)
    return done, (folder / "asked").read_text().splitlines()


@pytest.mark.parametrize(
    ("reached", "torch", "told"),
    [
        (True, "--requirement requirements/torch-cpu.txt", "PyTorch for CPUs (200 MB), since no NVIDIA GPU is here"),
        (False, "torch triton", "download.pytorch.org, which has it without, is out of reach"),
    ],
)
def test_where_pytorch_comes_from_is_said_and_nothing_else(
    tmp_path: Path, reached: bool, torch: str, told: str
) -> None:
    done, asked = set_up(tmp_path, reached=reached)
    assert done.returncode == 0, done.stderr
    assert asked[0].endswith(f"install --constraint requirements/constraints.txt {torch}")
    assert asked[1].endswith("--editable .[compare,test,dev]")
    lines = done.stderr.splitlines()
    assert all(line.startswith("outpace: ") for line in lines), lines
    assert len(lines) == 3 and told in lines[1]


def test_what_pip_said_is_shown_where_it_failed(tmp_path: Path) -> None:
    done, asked = set_up(tmp_path, reached=True, pip_exit=1)
    assert done.returncode == 1 and len(asked) == 1
    *_, warning, remedy = done.stderr.splitlines()
    assert warning == "WARNING: Retrying (4 left)" and "PIP_INDEX_URL" in remedy


def test_an_interpreter_that_is_none_is_named(tmp_path: Path) -> None:
    env = os.environ | {"PYTHON": str(tmp_path / "python9")}
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(ROOT / "scripts" / "setup", tmp_path / "scripts")
    done = subprocess.run([script], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and f"none of: {tmp_path / 'python9'}." in done.stderr
    assert not (tmp_path / ".venv").exists()
