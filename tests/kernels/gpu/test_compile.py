"""Every kernel compiles for a Hopper GPU, which takes none: the interpreter accepts what the compiler does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need Triton")

SCRIPT = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from outpace.kernels.gpu import activation, attention, norm, rope, sample

FLOAT, INT, REAL, WHOLE = "*fp32", "*i64", "fp32", "i32"


def compile(kernel, pointers, **constants):
    scalars = {"eps": REAL, "scale": REAL, "greedy_below": REAL}
    kinds = {name: pointers.get(name, scalars.get(name, WHOLE)) for name in kernel.arg_names}
    kinds |= dict.fromkeys(constants, "constexpr")
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=kinds, constexprs=values)
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]


def pointers(kernel, model, **others):
    return {n: others.get(n, model) for n in kernel.arg_names if n.endswith("_ptr")}


for model in (FLOAT, "*bf16"):
    for has_delta in (True, False):
        kernel = norm._add_rms_norm
        compile(kernel, pointers(kernel, model), HAS_DELTA=has_delta, BLOCK=1024)
    compile(activation._silu_mul, pointers(activation._silu_mul, model), BLOCK=1024)
    for norms in (True, False):
        kernel = rope._turn_and_store
        compile(kernel, pointers(kernel, model, slot_ptr=INT), H=32, N=8, D=128, NORMS=norms, BLOCK=128)
    for sampled in (True, False):
        kernel = sample._best_of_split
        kinds = pointers(kernel, INT, logits_ptr=model, temperature_ptr=FLOAT, score_ptr=FLOAT)
        compile(kernel, kinds, SPLITS=24, HAS_IDS=sampled, SAMPLED=sampled, BLOCK=2048)
    kernel = attention._attend
    for splits, out, has_first, window in ((8, FLOAT, True, 0), (1, model, False, 4096)):
        kinds = pointers(kernel, FLOAT, q_ptr=model, k_ptr=model, v_ptr=model, out_ptr=out)
        kinds |= {"table_ptr": INT, "start_ptr": INT, "first_ptr": INT}
        compile(
            kernel, kinds, WINDOW=window, HAS_FIRST=has_first, G=4, D=128, PAGE=16, SPLITS=splits, BLOCK_M=16,
            BLOCK_T=64, BLOCK_D=128, PRECISION="ieee" if model == FLOAT else None,
        )
    kernel = attention._join
    compile(kernel, pointers(kernel, FLOAT, out_ptr=model), D=128, SPLITS=8, BLOCK_C=8, BLOCK_D=128)
kernel = sample._best_of_all
compile(kernel, pointers(kernel, INT, score_ptr=FLOAT), SPLITS=24, BLOCK=32)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
def test_every_kernel_compiles_for_a_hopper_gpu(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    script = tmp_path / "compile_all.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
