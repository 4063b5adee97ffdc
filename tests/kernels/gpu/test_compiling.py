"""Kernels are found without being launched, and compiled in other processes, for a GPU that need not be there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need Triton")

SCRIPT = """
import os
from pathlib import Path

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from outpace.kernels.gpu import compiling, places
from outpace.kernels.gpu.compiling import NoDevice
from outpace.kernels.gpu.norm import add_rms_norm

driver.set_active(NoDevice(GPUTarget("cuda", 90, 32)))
places.unknown = None


def work():
    for columns in (64, 128, 256, 512, 1024):
        total, out = add_rms_norm(torch.ones(3, columns), torch.ones(3, columns), torch.ones(columns), 1e-5)
        assert not total.any() and not out.any(), "not launched, and read as zeros"


def written():
    found = [path.stat() for path in Path(os.environ["TRITON_CACHE_DIR"]).rglob("_add_rms_norm.cubin")]
    return {(each.st_ino, each.st_mtime_ns) for each in found}


kernels = compiling.find(work)
assert [k.name for k in kernels] == ["_add_rms_norm"] * 5, kernels
assert compiling.find(work) == kernels, "finding compiles nothing"
broken = compiling.Kernel("outpace.kernels.gpu.places", "unknown", "{}")
assert compiling.compile_all([*kernels[:2], broken, *kernels[2:]], 250.0) == 6
made = written()
assert len(made) == 5
assert compiling.compile_all(kernels, 250.0) == 5
assert written() == made, "read from the cache"
try:
    compiling.find(work)
    raise AssertionError("they are all held now, so they are launched")
except AttributeError as error:
    assert "launcher" in str(error), error
assert compiling.compile_all(kernels, 0.0) == 0, "no time"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
def test_what_will_be_launched_is_found_and_compiled_in_processes(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = tmp_path / "compile.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
