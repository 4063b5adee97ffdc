"""Rotary scaling of a GGUF file → `RopeConfig`, refusing what cannot be expressed.

Llama 3.1 files do not say how they were scaled: the converter stores only the divisor of every frequency, as the
tensor `rope_freqs.weight`. The divisors follow one formula (`rope`, kind llama3), so its parameters are solved for
and then checked against every divisor; a tensor made by another formula is refused, never approximated.

Legend: R rotary pairs (head_dim / 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from outpace.errors import CheckpointError
from outpace.models.arch import RopeConfig
from outpace.models.fields import Fields
from outpace.models.gguf.file import GgufFile
from outpace.models.rope import inverse_frequencies

FREQUENCY_DIVISORS = "rope_freqs.weight"
_TOLERANCE = 1e-5

Vector = npt.NDArray[np.float64]


def read_rope(file: GgufFile, fields: Fields, head_dim: int, max_positions: int) -> RopeConfig:
    """The rotary embedding of a file.

    Raises:
        CheckpointError: a scaling type other than none, linear, yarn and Llama 3's, two kinds at once, or rotation
            of only a part of the head.
    """
    if (rotated := fields.integer("rope.dimension_count", head_dim)) != head_dim:
        raise CheckpointError(
            f"{fields.origin}: rope.dimension_count is {rotated}; only models that rotate all {head_dim} dimensions "
            "of a head are supported"
        )
    rope = _scaled(fields, RopeConfig(theta=fields.number("rope.freq_base", 10_000.0, above=1.0)), max_positions)
    if FREQUENCY_DIVISORS not in file.tensors:
        return rope
    divisors_R = file.load(FREQUENCY_DIVISORS).astype(np.float64)
    if divisors_R.shape != (head_dim // 2,) or not (divisors_R > 0).all():
        raise CheckpointError(
            f"{file.path}: {FREQUENCY_DIVISORS} of shape {list(divisors_R.shape)} must hold {head_dim // 2} numbers > 0"
        )
    if (divisors_R == 1.0).all():
        return rope
    if rope.kind != "default":
        raise CheckpointError(f"{file.path}: both {FREQUENCY_DIVISORS} and {rope.kind} rope scaling; one is possible")
    return _solved(divisors_R, rope, head_dim, file)


def _scaled(fields: Fields, rope: RopeConfig, max_positions: int) -> RopeConfig:
    kind = fields.get("rope.scaling.type") or "none"
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    if kind not in ("none", "linear", "yarn") or factor < 1.0:
        raise CheckpointError(
            f"{fields.origin}: rope.scaling.type is {kind!r} with factor {factor}; none, linear and yarn with factors "
            "from 1 on are supported"
        )
    if kind == "yarn":
        return replace(
            rope,
            kind="yarn",
            factor=factor,
            original_max_positions=fields.integer("rope.scaling.original_context_length", max_positions),
            beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        )
    linear = factor > 1.0 and (kind == "linear" or fields.get("rope.scaling.type") is None)
    return replace(rope, kind="linear", factor=factor) if linear else rope


@dataclass(frozen=True, slots=True)
class _Line:
    """The blend of Llama 3's formula as a line over turns per position: blend = slope · turns + intercept."""

    slope: float
    intercept: float


def _solved(divisors_R: Vector, rope: RopeConfig, head_dim: int, file: GgufFile) -> RopeConfig:
    """The llama3 parameters that give these divisors. Only two of its three limits are independent; low is 1."""
    turns_R = inverse_frequencies(rope, head_dim).double().numpy() / (2 * math.pi)
    factor = float(divisors_R.max())
    line = _fit(divisors_R, turns_R, factor)
    high, original = 4.0, 8192
    if line is not None and line.slope > 0 > line.intercept:
        high = round(1.0 - 1.0 / line.intercept, 3)
        original = round(line.slope * (high - 1.0))
    solved = replace(
        rope,
        kind="llama3",
        factor=factor,
        low_freq_factor=1.0,
        high_freq_factor=high,
        original_max_positions=original,
    )
    expected_R = inverse_frequencies(rope, head_dim) / inverse_frequencies(solved, head_dim)
    if not np.allclose(expected_R.numpy(), divisors_R, rtol=_TOLERANCE, atol=0):
        raise CheckpointError(
            f"{file.path}: {FREQUENCY_DIVISORS} (divisors 1 to {factor:g}) does not follow Llama 3's formula, the only "
            "one that is supported; use the safetensors checkpoint, whose config.json names the scaling"
        )
    return solved


def _fit(divisors_R: Vector, turns_R: Vector, factor: float) -> _Line | None:
    """Least squares over the blended frequencies; None if fewer than two are blended."""
    blend_R = (1 / divisors_R - 1 / factor) / (1 - 1 / factor)
    blended = (divisors_R > 1.0) & (divisors_R < factor * (1 - 1e-6))
    if blended.sum() < 2:
        return None
    slope, intercept = np.polyfit(turns_R[blended], blend_R[blended], 1)
    return _Line(float(slope), float(intercept))
