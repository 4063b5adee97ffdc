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
    """With a python that runs nothing."""
    fake, copy = tmp_path / "bin" / "python", tmp_path / "checkout" / "scripts" / "measure"
    for path, text in ((copy, SCRIPT.read_text()), (fake, "#!/bin/sh\ncase $1 in *prefill*) exit 3;; esac\n")):
        path.parent.mkdir(parents=True)
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
