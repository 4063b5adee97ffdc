"""The soak, for a minute; `python benchmarks/soak.py` runs it for ten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_minute_of_clients_that_leave_and_an_engine_that_is_killed() -> None:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(SCRIPT), "--seconds", "60"]
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=270)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    line = json.loads(done.stdout)
    assert line["failures"] == [] and line["kills"] == 2 and line["settings"]["clients"] == 200
    requests = line["requests"]
    assert requests["equal"] > 100
    assert line["preempted_by_the_last_engine"] > 30
    share = sum(requests.values())
    assert 0.12 < requests["left"] / share < 0.28
    assert 0.05 < requests["nonsense"] / share < 0.15
