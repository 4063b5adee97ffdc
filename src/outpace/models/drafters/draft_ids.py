"""Which target token each draft id stands for, from the two maps a drafter file may carry.

`d2t` [Vd] is an offset in every trainer's writing (target id = i + d2t[i]) but some converters wrote the target ids
themselves; `t2d` [V] marks the target ids that are in the draft vocabulary, and settles which of the two it is.

Legend: V target vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.errors import DrafterError
from outpace.models.wiring import D2tKind

_REMEDY = "the drafter was made for another target, or converted wrongly: fetch the one made for this target"


@dataclass(frozen=True, slots=True)
class DraftIds:
    """`target_ids_V` int64 [Vd] on the CPU, how d2t was read, and what a person should know of it."""

    target_ids_V: Tensor
    kind: D2tKind
    notes: tuple[str, ...] = ()


def resolve_draft_ids(d2t: Tensor | None, t2d: Tensor | None, draft_vocab_size: int, vocab_size: int) -> DraftIds:
    """Decides what d2t holds.

    Args:
        d2t, t2d: as in the file, None if absent.
        draft_vocab_size: rows of the drafter's head. vocab_size: the target's.

    Raises:
        DrafterError: the maps disagree with each other, with the head or with the target's vocabulary.
    """
    _check_shape("t2d", t2d, vocab_size, "target tokens")
    if d2t is None:
        return _full(t2d, draft_vocab_size, vocab_size)
    _check_shape("d2t", d2t, draft_vocab_size, "draft tokens (rows of lm_head)")
    d2t = d2t.to(torch.int64)
    readings: dict[D2tKind, Tensor] = {"offset": d2t + torch.arange(len(d2t)), "absolute": d2t}
    chosen = _by_increase(d2t, readings) if t2d is None else _by_t2d(t2d, readings)
    _check_ids(chosen.target_ids_V, chosen.kind, vocab_size)
    if chosen.kind == "offset" and not d2t.any() and draft_vocab_size < vocab_size:
        note = f"d2t is all zeros, so only the first {draft_vocab_size} target ids are proposed; was it ever filled?"
        return DraftIds(chosen.target_ids_V, chosen.kind, (*chosen.notes, note))
    return chosen


def _check_shape(name: str, ids: Tensor | None, length: int, of_what: str) -> None:
    if ids is None:
        return
    if ids.dim() != 1 or len(ids) != length:
        raise DrafterError(f"{name} has shape {list(ids.shape)}, but there are {length} {of_what}; {_REMEDY}")
    if ids.is_floating_point() or ids.is_complex():
        raise DrafterError(f"{name} is {ids.dtype}; it must hold whole numbers or booleans")


def _full(t2d: Tensor | None, draft_vocab_size: int, vocab_size: int) -> DraftIds:
    if draft_vocab_size != vocab_size:
        raise DrafterError(
            f"the head proposes {draft_vocab_size} tokens, the target has {vocab_size}, and there is no d2t to say "
            "which target token each of them is; ask its maker for a checkpoint that holds d2t"
        )
    if t2d is not None and not t2d.bool().all():
        raise DrafterError(
            f"t2d leaves out {int((~t2d.bool()).sum())} of {vocab_size} target tokens, but the head proposes all of "
            "them and there is no d2t; ask its maker for a checkpoint that holds d2t"
        )
    return DraftIds(torch.arange(vocab_size), "none")


def _by_t2d(t2d: Tensor, readings: dict[D2tKind, Tensor]) -> DraftIds:
    marked = t2d.nonzero().flatten()
    for kind, ids in readings.items():
        if torch.equal(ids.sort().values, marked):
            note = "d2t is not in ascending order of target ids" if not torch.equal(ids, marked) else None
            return DraftIds(ids, kind, () if note is None else (note,))
    offset = readings["offset"]
    raise DrafterError(
        f"d2t and t2d disagree: t2d marks {len(marked)} target ids, first {marked[:4].tolist()}; d2t gives "
        f"{len(offset)}, first {offset[:4].tolist()} read as offsets and {readings['absolute'][:4].tolist()} read as "
        f"ids; {_REMEDY}"
    )


def _by_increase(d2t: Tensor, readings: dict[D2tKind, Tensor]) -> DraftIds:
    """Offsets of neighbouring ids are equal, so a map that always grows holds ids."""
    kind: D2tKind = "absolute" if len(d2t) > 1 and bool((d2t[1:] > d2t[:-1]).all()) else "offset"
    why = "always grows" if kind == "absolute" else "does not always grow"
    return DraftIds(readings[kind], kind, (f"there is no t2d to check d2t by; it {why}, so it is read as {kind}",))


def _check_ids(ids: Tensor, kind: D2tKind, vocab_size: int) -> None:
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise DrafterError(
            f"d2t, read as {kind}, names target ids {low} … {high}; the target has 0 … {vocab_size - 1}; {_REMEDY}"
        )
    values, counts = ids.unique(return_counts=True)
    if len(values) != len(ids):
        twice = int(values[counts > 1][0])
        raise DrafterError(f"d2t, read as {kind}, gives target id {twice} to more than one draft id; {_REMEDY}")
