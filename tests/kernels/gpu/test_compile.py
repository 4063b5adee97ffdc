"""Every kernel compiles for a Hopper GPU, which takes none: the interpreter accepts what the compiler does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need Triton")

SCRIPT = """
import subprocess
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from outpace.kernels.gpu import activation, attention, decode, exchange, exchange_norm, heads, latent, latents
from outpace.kernels.gpu import linear, mask, mixture, norm, packed as gpu_packed, packed_linear, packed_mixture
from outpace.kernels.gpu import places, plain_latents, rope, routing, sample, settle, sorting, splits as splits_
from outpace.kernels.gpu import tiled_mixture, truncate

FLOAT, INT, REAL, WHOLE = "*fp32", "*i64", "fp32", "i32"


# Arguments in `aligned` are multiples of 16.
def compile(kernel, pointers, aligned=(), num_warps=4, limit=None, **constants):
    scalars = {"eps": REAL, "scale": REAL, "greedy_below": REAL}
    kinds = {name: pointers.get(name, scalars.get(name, WHOLE)) for name in kernel.arg_names}
    kinds |= dict.fromkeys(constants, "constexpr")
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    known = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(fn=kernel, signature=kinds, constexprs=values, attrs=known)
    options = {"num_warps": num_warps} | ({"maxnreg": limit} if limit else {})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert compiled.asm["cubin"]
    return compiled


def spills(compiled):
    # A thread has more than its registers hold.
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    return "STACK:0 " not in said


def pointers(kernel, model, **others):
    return {n: others.get(n, model) for n in kernel.arg_names if n.endswith("_ptr")}


for model in (FLOAT, "*bf16"):
    for parts in (0, 1, 2):
        kernel = norm._add_rms_norm
        kinds = pointers(kernel, model) | ({"delta_ptr": FLOAT} if parts > 1 else {})
        compile(kernel, kinds, PARTS=parts, BLOCK=1024, PDL=True)
    compile(norm._embed_and_norm, pointers(norm._embed_and_norm, model, token_ptr=INT), BLOCK=1024)
    for parts in (1, 16):
        kinds = pointers(activation._silu_mul, model, gate_up_ptr=FLOAT if parts > 1 else model)
        compile(activation._silu_mul, kinds, PARTS=parts, BLOCK=1024, PDL=True)
    kernel = rope._angles
    compile(kernel, pointers(kernel, model, position_ptr=INT, freq_ptr=FLOAT), D=128, BLOCK=128)
    for norms in (True, False):
        kernel = rope._turn_and_store
        compile(kernel, pointers(kernel, model, slot_ptr=INT), H=32, N=8, D=128, NORMS=norms, BLOCK=128, PDL=True)
    for parts, size in ((1, 2), (3, 3), (1, 8)):
        kernel = exchange._exchange
        kinds = pointers(kernel, model, part_ptr=FLOAT if parts > 1 else model, address_ptr=INT)
        kinds |= {"epoch_ptr": "*i32", "stop_ptr": "*i32"}
        width = triton.next_power_of_2(size)
        compile(
            kernel, kinds, PARTS=parts, SIZE=size, WIDTH=width, DATA=2048 * width, PROGRAMS=512, POLLS=1024, BLOCK=1024,
            PDL=True,
        )
        kernel = exchange_norm._exchange_norm
        kinds = pointers(kernel, model, part_ptr=FLOAT if parts > 1 else model, address_ptr=INT)
        compile(
            kernel, kinds | {"epoch_ptr": "*i32", "stop_ptr": "*i32"}, PARTS=parts, SIZE=size, WIDTH=width,
            FLAGS=4096 * width, DATA=8192 * width, ROWS=64, COLUMNS=8192, POLLS=1024, BLOCK=4096, PDL=True,
        )
    for sampled in (True, False):
        kernel = sample._best_of_split
        kinds = pointers(kernel, INT, logits_ptr=model, temperature_ptr=FLOAT, score_ptr=FLOAT, min_p_ptr=FLOAT)
        kinds |= {"peak_ptr": FLOAT, "cut_ptr": INT}
        given = {"HAS_IDS": sampled, "SAMPLED": sampled, "CUT": sampled, "PEAKS": 32}
        compile(kernel, kinds, BLOCK=2048, PDL=True, **given)
    kernel = truncate._peak_of_part
    compile(kernel, pointers(kernel, FLOAT, logits_ptr=model), C=32, BLOCK=1024, PDL=True)
    for counts in (True, False):
        whole = {"top_k_ptr": INT, "floor_ptr": INT, "low_ptr": INT, "sums_ptr": INT}
        kernel = truncate._sum_of_part
        compile(
            kernel, pointers(kernel, FLOAT, logits_ptr=model, **whole), COUNTS=counts, FIXED_POINT=2.0**40,
            LOWEST=-(2**31), C=32, BLOCK=1024, PDL=True,
        )
        kernel = truncate._end
        compile(kernel, pointers(kernel, FLOAT, **whole), COUNTS=counts, PASSES=8, C=32, PDL=True)
    kernel = attention._attend
    for has_first, window, splits, page in ((True, 0, 8, 16), (False, 4096, 1, 16), (False, 0, 2, 64)):
        kinds = pointers(kernel, model, table_ptr=INT, start_ptr=INT, first_ptr=INT, peak_ptr=FLOAT, total_ptr=FLOAT)
        compile(
            kernel, kinds | ({"out_ptr": FLOAT} if splits > 1 else {}), WINDOW=window, HAS_FIRST=has_first, G=4, D=128,
            PAGE=page, SPLIT=splits > 1, LEAST=256, BLOCK_M=16, BLOCK_T=64, BLOCK_D=128,
            PRECISION="ieee" if model == FLOAT else None, PDL=True,
        )
    for splits, parts, has_first, window in ((8, 2, True, 0), (1, 1, False, 4096)):
        kernel = decode._decode
        kinds = pointers(kernel, model, table_ptr=INT, start_ptr=INT, first_ptr=INT, slot_ptr=INT)
        kinds |= {"peak_ptr": FLOAT, "total_ptr": FLOAT}
        kinds |= {"qkv_ptr": FLOAT if parts > 1 else model, "out_ptr": FLOAT if splits > 1 else model}
        compile(
            kernel, kinds, PARTS=parts, NORMS=has_first, WINDOW=window, HAS_FIRST=has_first, G=4, N=8, D=128, PAGE=16,
            SPLIT=splits > 1, BLOCK_M=16, BLOCK_S=1, BLOCK_T=64, BLOCK_D=128,
            PRECISION="ieee" if model == FLOAT else None, PDL=True,
        )
    kernel = splits_.join
    kinds = pointers(kernel, FLOAT, out_ptr=model, start_ptr=INT, first_ptr=INT)
    for splits, least in ((8, 0), (64, 0), (2, 256)):
        compile(
            kernel, kinds, WINDOW=0, HAS_FIRST=True, H=32, D=128, SPLITS=splits, BLOCK_C=min(16, splits), BLOCK_T=64,
            LEAST=least, BLOCK_D=128, PDL=True,
        )
    kernel = latent._attend_latent
    for splits, has_first in ((1, False), (1, True), (8, False), (8, True)):
        kinds = pointers(kernel, model, table_ptr=INT, start_ptr=INT, first_ptr=INT, peak_ptr=FLOAT, total_ptr=FLOAT)
        compile(
            kernel, kinds | ({"out_ptr": FLOAT} if splits > 1 else {}), N=8, R=512, D=64, HAS_FIRST=has_first, PAGE=64,
            SPLIT=splits > 1, BLOCK_M=16, BLOCK_T=32, BLOCK_R=512, BLOCK_D=64,
            PRECISION="ieee" if model == FLOAT else None, PDL=True,
        )
    kernel = plain_latents._attend_plain
    tokens, positions = (64, 32) if model == FLOAT else (128, 64)
    compile(
        kernel, pointers(kernel, model, start_ptr=INT), num_warps=8, N=8, P=128, V=128, D=64, E=576, BLOCK_M=tokens,
        BLOCK_T=positions, BLOCK_P=128, BLOCK_V=128, BLOCK_D=64, PRECISION="ieee" if model == FLOAT else None,
        PDL=True,
    )
    for parts, q_rank in ((1, 0), (4, 1536)):
        kernel = latents._store_latents
        kinds = pointers(kernel, model, slot_ptr=INT, part_ptr=FLOAT if parts > 1 else model)
        compile(
            kernel, kinds, PARTS=parts, Q=q_rank, R=512, D=64, BLOCK_Q=2048, BLOCK_R=512, BLOCK_D=64, PDL=True
        )
    compile(mask._mask, pointers(mask._mask, model, allowed_ptr="*i32"), BLOCK=4096, PDL=True)
    compile(settle._keep_boundaries, pointers(settle._keep_boundaries, model, slot_ptr=INT), PAGE=16, BLOCK=2048)
for rows, outputs in ((16, 16), (64, 64)):
    kernel = heads._multiply_heads
    compile(
        kernel, pointers(kernel, "*bf16"), BLOCK_M=rows, BLOCK_O=outputs, BLOCK_K=128, STAGES=4, PDL=True
    )
kernel = linear._multiply
for gated in (True, False):
    kinds = pointers(linear._multiply_wide, "*bf16")
    kinds |= {"x_desc": "tensordesc<bf16[128, 64]>", "weight_desc": "tensordesc<bf16[64, 64]>"}
    compile(
        linear._multiply_wide, kinds, GATED=gated, HAS_BIAS=not gated, BLOCK_M=128, BLOCK_N=64, BLOCK_K=64, STAGES=3,
        PDL=True,
    )
    for rows in (16, 64):
        compile(
            kernel, pointers(kernel, "*bf16"), GATED=gated, HAS_BIAS=not gated, EVEN=gated, BLOCK_M=rows, BLOCK_N=64,
            BLOCK_K=128, STAGES=3, PDL=True,
        )
kernel = routing._choose
kinds = pointers(kernel, FLOAT, logits_ptr="*bf16", expert_ptr="*i32", first_ptr="*i32")
for normalizes in (True, False):
    compile(
        kernel, kinds, C=8, REUSE=0 if normalizes else 3, PARTS=1, SIGMOID=False, CORRECTS=False, NORMALIZES=normalizes,
        GROUPS=1, BEST=1, PLACES=64, BLOCK_C=8, BLOCK_E=512, PDL=True,
    )
for groups in (1, 8):
    compile(
        kernel, kinds | {"logits_ptr": FLOAT}, C=6, REUSE=0, PARTS=4, SIGMOID=True, CORRECTS=True, NORMALIZES=True,
        GROUPS=groups, BEST=4, PLACES=64, BLOCK_C=8, BLOCK_E=256, PDL=True,
    )
for ahead in (True, False):
    kinds = pointers(routing._group, "*i32")
    compile(routing._group, kinds, M=16, BLOCK_P=16, BLOCK_Q=512, BLOCK_E=512, AHEAD=ahead, PDL=True)
ints = dict.fromkeys(("word_ptr", "scale_ptr", "zero_ptr", "expert_ptr", "pair_ptr"), "*i32")
packed = ((4, True, 16, False), (4, False, 64, True), (8, True, 64, False), (8, False, 16, False))
for bits, gated, rows, zeros in packed:
    whole = {"BITS": bits, "HAS_ZEROS": zeros, "EVEN": not zeros, "BLOCK_N": 64, "STAGES": 3, "PDL": True}
    kinds = ints if bits == 4 else ints | {"scale_ptr": FLOAT, "zero_ptr": FLOAT}
    kernel = packed_linear._multiply_packed
    model = "*fp16" if gated else "*bf16"
    compile(kernel, pointers(kernel, model, **kinds), GATED=gated, HAS_BIAS=gated, BLOCK_M=rows, **whole)
    kernel = gpu_packed._unpack
    compile(kernel, pointers(kernel, model, **kinds), BITS=bits, HAS_ZEROS=zeros, BLOCK_N=64)
    given = {"C": 8, "BITS": bits, "HAS_ZEROS": zeros, "M": 8, "PDL": True}
    for splits in (1, 2, 4):
        for even in (True, False):
            kernel, more = packed_mixture._gate_up, {"SPLITS": splits, "BLOCK_N": 8, "BLOCKS": 7 * splits}
            aligned = [n for n in kernel.arg_names if n.endswith("_ptr") or n in ("width", "num_inputs")]
            compiled = compile(kernel, pointers(kernel, "*bf16", **kinds), aligned, splits, EVEN=even, **given | more)
            assert compiled.metadata.shared <= splits * 16 * 8 * 4, "weights go through shared memory"
    for blocks in (1, 3):
        kernel, more = packed_mixture._down, {"BLOCKS": blocks, "TILES": 4, "BLOCK_N": 16, "EVEN": blocks == 1}
        aligned = [n for n in kernel.arg_names if n.endswith("_ptr") or n in ("width", "num_outputs")]
        limit = packed_mixture._REGISTERS if blocks == 1 and not zeros else None
        floats = {"score_ptr": FLOAT, "out_ptr": FLOAT}
        compiled = compile(kernel, pointers(kernel, "*bf16", **kinds | floats), aligned, 1, limit, **given | more)
        assert compiled.metadata.shared <= 16 * 8 * 4, "weights go through shared memory"
        assert not limit or not spills(compiled)
kernel = mixture._multiply_chosen
for gated in (True, False):
    kinds = pointers(kernel, "*bf16", score_ptr=FLOAT, expert_ptr="*i32", pair_ptr="*i32")
    compile(
        kernel, kinds | ({} if gated else {"out_ptr": FLOAT}), C=8, GATED=gated, EVEN=gated, M=16, BLOCK_N=64,
        BLOCK_K=128, STAGES=3, PDL=True,
    )
kernel = sorting._count_pairs
compile(kernel, pointers(kernel, "*i32"), BLOCK=512, STEP=64, BLOCK_E=512, num_warps=8, PDL=True)
kernel = sorting._place_pairs
compile(
    kernel, pointers(kernel, "*i32"), M=128, BLOCK=512, STEP=64, TILES=16, BLOCK_E=512, num_warps=8, PDL=True
)
kernel = tiled_mixture._add_pairs
compile(kernel, pointers(kernel, "*bf16", score_ptr=FLOAT), C=8, HAS_ALSO=True, BLOCK=1024, PDL=True)
kernel = tiled_mixture._multiply_tiles
tiles = dict.fromkeys(("pair_ptr", "expert_ptr", "begin_ptr", "end_ptr"), "*i32")
aligned = [n for n in kernel.arg_names if n.endswith("_ptr") or n in ("size", "num_rows", "num_inputs")]
for bits, most in ((4, 128), (8, 64), (16, 128), (32, 32)):
    model = FLOAT if bits == 32 else "*bf16"
    words = {"weight_ptr": "*i32", "scale_ptr": "*i32" if bits == 4 else FLOAT, "zero_ptr": "*i32"}
    kinds = pointers(kernel, model, **tiles | (words if bits < 16 else {}))
    for pairs, gated in ((8 if bits < 16 else 16, True), (64, True), (128, True), (most, False)):
        if pairs <= most:
            tile = tiled_mixture.tile_with(pairs, bits)
            compiled = compile(
                kernel, kinds, aligned, tile.warps, C=8, GATED=gated, BITS=bits, HAS_ZEROS=bits == 4, EVEN=gated,
                PRECISION="ieee" if bits == 32 else None, M=pairs, BLOCK_N=tile.outputs, BLOCK_K=tile.inputs,
                STAGES=tile.stages, PDL=True,
            )
            assert compiled.metadata.shared <= 227 * 1024, (tile, bits)
kernel = settle._settle
for k, chance in ((0, False), (3, False), (3, True)):
    compile(kernel, pointers(kernel, INT, chance_ptr=FLOAT), K=k, HAS_CHANCE=chance, BLOCK=4)
for has_kept in (True, False):
    compile(places._places, pointers(places._places, INT), HAS_KEPT=has_kept, PAGE=16, BLOCK=4)
for has_ids in (True, False):
    kernel = sample._best_of_all
    compile(kernel, pointers(kernel, INT, score_ptr=FLOAT), HAS_IDS=has_ids, SPLITS=32, PDL=True)
print(triton.__file__)
"""


OLDEST = Path(sys.prefix) / "oldest-triton"
"""Where scripts/oldest-triton puts it."""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("triton", ["the one here", "the oldest"])
def test_every_kernel_compiles_for_a_hopper_gpu(triton: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    if triton == "the oldest":
        if not (OLDEST / "triton").is_dir():
            pytest.fail("the oldest Triton is not there: run scripts/oldest-triton")
        environment["PYTHONPATH"] = os.pathsep.join([str(OLDEST), *filter(None, [environment.get("PYTHONPATH")])])
    script = tmp_path / "compile_all.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert Path(done.stdout.strip()).is_relative_to(OLDEST) == (triton == "the oldest")
