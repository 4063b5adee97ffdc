"""INT4 weights unpacked in registers, in the layout of `kernels/int4.py`.

Or'ed into the mantissa of 128.0 (1024.0 in float16), four bits are 128 plus their number: no conversion of integers,
which a multiprocessor does 16 of a cycle and a memory-bound product needs 32 of. What is taken off is exact.

Shapes: N outputs of a tile, I = 32 words of a block.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton's functions are compiled from their source and carry no types.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _half(pair, HIGH: tl.constexpr, kind: tl.constexpr):
    """One half of each word, as a number of 16 bits."""
    if HIGH:
        pair = pair >> 16
    return (pair & 0xFFFF).to(tl.uint16).to(kind, bitcast=True)


@triton.jit
def planes(word_NI, scale_N, zero_N, j: tl.constexpr, HAS_ZEROS: tl.constexpr, kind: tl.constexpr):
    """Weights of planes j and j + 4 of a block, [N, 32] each; scales and zeros come in pairs."""
    bits: tl.constexpr = 0x43004300 if kind == tl.bfloat16 else 0x64006400
    eight: tl.constexpr = 136.0 if kind == tl.bfloat16 else 1032.0
    both_NI = ((word_NI >> (4 * j)) & 0x000F000F) | bits
    low_NI, high_NI = _half(both_NI, False, kind), _half(both_NI, True, kind)
    if HAS_ZEROS:
        low_NI -= _half(zero_N, False, kind)[:, None]
        high_NI -= _half(zero_N, True, kind)[:, None]
    else:
        low_NI -= tl.full((), eight, kind)
        high_NI -= tl.full((), eight, kind)
    return low_NI * _half(scale_N, False, kind)[:, None], high_NI * _half(scale_N, True, kind)[:, None]
