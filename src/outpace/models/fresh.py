"""What a drafter looks like that is yet to be trained: the target's own sizes, unless the caller chooses others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor

from outpace.errors import ConfigError
from outpace.models.arch import RopeConfig, TargetConfig
from outpace.models.drafters.taps import Taps, check_taps, default_boundaries
from outpace.models.wiring import DrafterWiring, LayerShape

SPECFORGE, MIDLAYER = "specforge", "midlayer."
"""The dialect, and its prefix, that fresh drafters are of and all drafters are saved in."""


class DrafterOptions(TypedDict, total=False):
    """Choices for a fresh drafter; what is left out follows the target."""

    aux_boundaries: Sequence[int]
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig
    max_positions: int
    norm_before_residual: bool
    norm_output: bool


def fresh_wiring(target: TargetConfig, draft_ids: Tensor | None, options: DrafterOptions) -> DrafterWiring:
    """The wiring of a fresh drafter.

    Args:
        target: what it will draft for.
        draft_ids: target ids that it may propose, ascending, int64 [Vd]; None for all.
        options: sizes and taps.

    Raises:
        ConfigError: ids or sizes are out of range.
        DrafterError: a tap is.
    """
    num_drafts = _check_ids(draft_ids, target.vocab_size)
    boundaries = tuple(options.get("aux_boundaries") or fresh_boundaries(target.num_layers))
    check_taps(Taps(boundaries, "chosen for a fresh drafter"), target.num_layers, len(boundaries))
    shape = _shape(target, options)
    same_width = shape.hidden_size == target.hidden_size
    return DrafterWiring(
        dialect=SPECFORGE,
        prefix=MIDLAYER,
        shape=shape,
        aux_boundaries=boundaries,
        aux_source="chosen for a fresh drafter",
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=num_drafts,
        d2t="none" if num_drafts == target.vocab_size else "offset",
        embedding="target" if same_width else "own",
        embedding_source="the target's" if same_width else "its own, as its width is not the target's",
        lm_head="own",
        has_fc=True,
        norm_before_residual=options.get("norm_before_residual", False),
        norm_output=options.get("norm_output", False),
        rope=options.get("rope", target.rope),
        max_positions=options.get("max_positions", target.max_positions),
        max_positions_source="chosen" if "max_positions" in options else "the target's",
    )


def fresh_boundaries(num_layers: int) -> tuple[int, ...]:
    """EAGLE-3's three taps; the deepest three boundaries in targets too small to hold three different ones."""
    found = default_boundaries(num_layers)
    return found if len(found) == 3 else tuple(range(num_layers + 1))[-3:]


def _shape(target: TargetConfig, options: DrafterOptions) -> LayerShape:
    hidden = options.get("hidden_size", target.hidden_size)
    num_heads = options.get("num_heads", target.num_heads)
    default_dim = target.head_dim if hidden == target.hidden_size else hidden // num_heads
    shape = LayerShape(
        hidden_size=hidden,
        intermediate_size=options.get("intermediate_size", target.intermediate_size),
        num_heads=num_heads,
        num_kv_heads=options.get("num_kv_heads", min(target.num_kv_heads, num_heads)),
        head_dim=options.get("head_dim", default_dim),
        norm_eps=target.norm_eps,
    )
    if min(shape.num_kv_heads, shape.head_dim, shape.intermediate_size) < 1 or num_heads % shape.num_kv_heads:
        raise ConfigError(f"{shape} is no layer: sizes start at 1, and num_kv_heads must divide num_heads")
    if shape.head_dim % 2:
        raise ConfigError(f"head_dim is {shape.head_dim}; it must be even, as rotary positions turn pairs")
    return shape


def _check_ids(draft_ids: Tensor | None, vocab_size: int) -> int:
    """Their number."""
    if draft_ids is None:
        return vocab_size
    ascending = bool((draft_ids[1:] > draft_ids[:-1]).all())
    inside = len(draft_ids) > 0 and int(draft_ids.min()) >= 0 and int(draft_ids.max()) < vocab_size
    if draft_ids.dtype != torch.int64 or not ascending or not inside:
        raise ConfigError(
            f"draft_ids ({len(draft_ids)} of {draft_ids.dtype}) must be int64, ascending, all different and in "
            f"0 … {vocab_size - 1}, the target's vocabulary"
        )
    return len(draft_ids)
