"""The same ground under every test: no model hub, one thread, fixed seeds, GPU tests only where there is a GPU."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# Read when the libraries are imported, so set before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Tests run one process a core, and servers and ranks beside them. A second thread would gain tiny models nothing, and
# OpenMP's threads spin while they wait for one another: with more of them than cores, a step takes ten times as long.
os.environ["OMP_NUM_THREADS"] = "1"
# For tests that start another Python.
os.environ["PYTHONPATH"] = os.pathsep.join(
    (str(Path(__file__).parent.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")]))
)

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined

from hypothesis import HealthCheck, settings

torch.set_num_threads(1)  # where a plugin imported torch before us
# Ctrl-C and hanging up mean something also where a shell, or nohup, started the tests in its background ignoring them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No deadline, for an example or for making it: a busy machine is no failure. In CI the same examples every time;
# elsewhere new ones every time.
settings.register_profile(
    "outpace",
    database=None,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("outpace")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A test's random weights do not depend on which tests ran before it."""
    torch.manual_seed(0)


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    """Nor do those that several tests share, which are made before any of them is seeded."""
    if fixturedef.scope != "function":
        torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With a GPU the kernels' tests run on it, so they are GPU tests too; without one the interpreter runs them.

    Files with slow tests come first: a file is one process's, and all others would wait for a long one at the end.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    kernels = Path(__file__).parent / "kernels" / "gpu"
    for item in items:
        if torch.cuda.is_available():
            if kernels in item.path.parents:
                item.add_marker(pytest.mark.gpu)
        elif item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
