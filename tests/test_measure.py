"""The script that measures what the README shows: its commands are benchmarks', with flags that these have."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "measure"


def listed() -> dict[str, str]:
    shown = subprocess.run([SCRIPT, "--list"], capture_output=True, text=True, check=True).stdout
    return dict(line.split(maxsplit=1) for line in shown.splitlines())


@pytest.mark.parametrize("command", listed().values())
def test_each_command_is_understood(command: str) -> None:
    python, script, *flags = shlex.split(command)
    assert python == "python"
    assert runpy.run_path(str(ROOT / script))["parse"](flags)


def test_the_readmes_figures_of_one_gpu_are_all_measured() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"`(python benchmarks/[^`]+)` \(GPU\)", readme))
    assert shown and shown <= set(listed().values())


def test_one_that_fails_is_said_and_the_others_are_run(tmp_path: Path) -> None:
    """With a python that runs nothing, and a GPU that is none."""
    fake, copy = tmp_path / "bin" / "python", tmp_path / "checkout" / "scripts" / "measure"
    says = "#!/bin/sh\ncase $1 in *prefill*) exit 3;; esac\n"
    for path, text in ((copy, SCRIPT.read_text()), (fake, says), (fake.with_name("nvidia-smi"), "#!/bin/sh\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    environment = {"PATH": f"{fake.parent}:/usr/bin:/bin"}
    asked = [copy, "out", "prefill", "step"]
    ran = subprocess.run(asked, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert ran.returncode == 1
    assert re.fullmatch(r"step: done in \d+ s\nprefill: FAILED in \d+ s\n", ran.stdout)
    assert "failed: prefill;" in ran.stderr
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"step.json", "step.log", "prefill.json", "prefill.log"}


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    ran = subprocess.run([SCRIPT, str(tmp_path / "out"), "stpe"], capture_output=True, text=True)
    assert ran.returncode == 2 and "stpe" in ran.stderr and "--list" in ran.stderr


@pytest.mark.parametrize("asked", [(), ("step",), ("step", "cycle"), ("--help",)])
def test_a_forgotten_folder_is_asked_for(asked: tuple[str, ...], tmp_path: Path) -> None:
    """A measurement's name is none: all would be measured, for 40 minutes."""
    ran = subprocess.run([SCRIPT, *asked], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 2 and "folder for the results" in ran.stderr and not list(tmp_path.iterdir())


def test_without_a_gpu_nothing_is_begun(tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexit 9\n")
    fake.chmod(0o755)
    environment = {"PATH": f"{fake.parent}:/usr/bin:/bin"}
    ran = subprocess.run([SCRIPT, "out", "step"], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert ran.returncode == 2 and "nvidia-smi shows none" in ran.stderr and not (tmp_path / "out").exists()
