"""One way to join a drafter to its target, as data, and a drafter that is joined so.

Legend: V draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outpace.models.drafter import Drafter
from outpace.models.target import Target
from outpace.models.wiring import FusionNorm

AS_READ = "as read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What may be wrong without an error."""

    boundaries: tuple[int, ...]
    """Taps, in `fc`'s order."""
    ids: str = AS_READ
    """Which target ids the draft ids are; a name among `readings`."""
    shift: int = 1
    """How far the token lies behind the feature that it is joined with; 1 is EAGLE-3's, and all that is served."""
    fusion_norm: FusionNorm
    norm_before_residual: bool
    norm_output: bool

    @classmethod
    def of(cls, drafter: Drafter) -> Variant:
        """As it is wired."""
        wiring = drafter.wiring
        return cls(
            boundaries=wiring.aux_boundaries,
            fusion_norm=wiring.fusion_norm,
            norm_before_residual=wiring.norm_before_residual,
            norm_output=wiring.norm_output,
        )

    def differences(self, other: Variant) -> list[str]:
        """What is other than in `other`, in words; empty if nothing is."""
        found = []
        if self.boundaries != other.boundaries:
            found.append(f"taps at boundaries {', '.join(map(str, self.boundaries))}")
        if self.ids != other.ids:
            found.append(f"draft ids {self.ids}")
        if self.shift != other.shift:
            found.append(f"each feature joined with the token {self.shift} behind it")
        if self.fusion_norm != other.fusion_norm:
            norm = {"none": "no norm", "whole": "one norm over all taps", "per_tap": "a norm for each tap"}
            found.append(f"{norm[self.fusion_norm]} before fc")
        if self.norm_before_residual != other.norm_before_residual:
            found.append(f"the residual {'normed' if self.norm_before_residual else 'not normed'}")
        if self.norm_output != other.norm_output:
            found.append(f"the next step fed the {'normed' if self.norm_output else 'unnormed'} state")
        return found


def readings(drafter: Drafter) -> Mapping[str, Tensor]:
    """Target ids of the draft ids, int64 [V], by how d2t may be meant; those that name no such token are left out."""
    read_V, vocab_size = drafter.target_ids_V, drafter.wiring.vocab_size
    own_V = torch.arange(len(read_V), device=read_V.device)
    found = {AS_READ: read_V}
    if drafter.wiring.d2t != "none":
        found |= {
            "one lower (d2t is off by one)": read_V - 1,
            "one higher (d2t is off by one)": read_V + 1,
            "in order (d2t left out)": own_V,
            "with d2t read as ids": read_V - own_V,
            "with d2t read as offsets": read_V + own_V,
        }
    return {name: ids.clamp(0, vocab_size - 1) for name, ids in found.items() if _names_tokens(ids, vocab_size)}


def _names_tokens(ids_V: Tensor, vocab_size: int) -> bool:
    """All but a few at the very ends lie in the vocabulary, and no more than these are named twice."""
    inside = (ids_V >= 0) & (ids_V < vocab_size)
    return bool((~inside).sum() <= 1) and len(ids_V[inside].unique()) == int(inside.sum())


@torch.no_grad()
def rewired(drafter: Drafter, target: Target, variant: Variant) -> Drafter:
    """A copy of an unpacked drafter that is joined otherwise; norms that its file lacks have weights of 1."""
    wiring = replace(
        drafter.wiring,
        aux_boundaries=variant.boundaries,
        aux_source="tried by the doctor",
        fusion_norm=variant.fusion_norm,
        norm_before_residual=variant.norm_before_residual,
        norm_output=variant.norm_output,
    )
    like = drafter.norm.weight
    copy = Drafter(wiring, target, readings(drafter)[variant.ids], dtype=like.dtype, device=like.device)
    held = dict(drafter.named_parameters())
    for name, parameter in copy.named_parameters():
        if name in held:
            parameter.copy_(held[name])
        else:
            assert parameter.dim() == 1, f"{name} is no norm"
            parameter.fill_(1.0)
    return copy
