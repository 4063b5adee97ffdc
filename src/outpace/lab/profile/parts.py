"""Which part of a model a kernel belongs to, by its name. What is not known is "other" and listed, never guessed.

Our own kernels are known by their functions' names in `kernels/gpu`, those of libraries by what all names of a family
hold. A product of the vocabulary head has the name of any other product: `trace` tells them apart by their order.
"""

from __future__ import annotations

import re

ATTENTION, LINEAR, EXPERTS, NORMS, HEAD = "attention", "linear layers", "experts", "norms", "head"
FUSION, ALL_REDUCE, SAMPLING, BOOKKEEPING = "fusion", "all-reduce", "sampling", "bookkeeping"
SMALL, COPIES, OTHER, GAPS = "small operations", "copies", "other", "launch gaps"

PARTS = (
    ATTENTION,
    LINEAR,
    EXPERTS,
    NORMS,
    HEAD,
    FUSION,
    ALL_REDUCE,
    SAMPLING,
    BOOKKEEPING,
    SMALL,
    COPIES,
    OTHER,
    GAPS,
)
"""In the order of the table. Sums of a product's summands and activations count as linear layers, turning as attention;
a product for the drafter's features is fusion; a sum over ranks is all-reduce, with the norm where one kernel does
both; positions, pages and committing are bookkeeping."""

FIRST_OF_FORWARD = "_places"
"""Every forward of target or drafter begins with it."""
LAST_OF_CYCLE = "_settle"
ATTENDS = ("_decode", "_attend", "_attend_latent")
"""Kernels that attend, once a layer."""

_OURS = {
    **dict.fromkeys((*ATTENDS, "_attend_plain", "join", "_turn_and_store", "_store_latents"), ATTENTION),
    **dict.fromkeys(("_multiply_heads", "_angles"), ATTENTION),
    **dict.fromkeys(("_multiply", "_multiply_wide", "_multiply_packed", "_unpack", "_silu_mul", "_join"), LINEAR),
    **dict.fromkeys(("_choose", "_group", "_multiply_chosen", "_gate_up", "_down"), EXPERTS),
    **dict.fromkeys(("_count_pairs", "_place_pairs", "_multiply_tiles", "_add_pairs"), EXPERTS),
    **dict.fromkeys(("_add_rms_norm", "_embed_and_norm"), NORMS),
    **dict.fromkeys(("_exchange", "_exchange_norm"), ALL_REDUCE),
    **dict.fromkeys(("_best_of_split", "_best_of_all", "_peak_of_part", "_sum_of_part", "_end", "_mask"), SAMPLING),
    **dict.fromkeys((FIRST_OF_FORWARD, LAST_OF_CYCLE, "_keep_boundaries", "_remember"), BOOKKEEPING),
}
_THEIRS = (
    (re.compile(r"^(Memcpy|Memset)\b"), COPIES),
    (re.compile(r"^nccl"), ALL_REDUCE),
    (re.compile(r"cublas|cutlass|nvjet|xmma|gemm|gemv|splitKreduce", re.IGNORECASE), LINEAR),
    (re.compile(r"\bat::(native|cuda)::"), SMALL),
)


def part_of(name: str) -> str:
    """Of a kernel, a copy or a fill, by the name that a profiler gives it."""
    if (part := _OURS.get(name)) is not None:
        return part
    return next((part for pattern, part in _THEIRS if pattern.search(name)), OTHER)
