"""Where a drafter taps its target: every spelling of layer ids, resolved to layer boundaries.

Boundary b is the input of layer b, transformers' `hidden_states[b]`; b = L is the last layer's output before the final
norm. Two conventions are in use, one apart, and the field tells which:

| field | ids name | read so by |
|---|---|---|
| `eagle_aux_hidden_state_layer_ids`, top level | boundaries | speculators, vLLM, AngelSlim |
| `eagle_config.eagle_aux_hidden_state_layer_ids` | outputs, boundary = id + 1 | SpecForge, ModelOpt, SGLang |
| `aux_hidden_states_layer_ids`, top level | outputs, boundary = id + 1 | AngelSlim |

Engines and trainers collect taps while layers run, so `fc` takes them in ascending order whatever the order of the
ids (ModelOpt writes a list made from a set).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outpace.errors import DrafterError
from outpace.models.fields import Fields

IDS, ANGELSLIM_IDS = "eagle_aux_hidden_state_layer_ids", "aux_hidden_states_layer_ids"
_REMEDY = "give aux_boundaries, the layer inputs it was trained on"


@dataclass(frozen=True, slots=True)
class Taps:
    """Boundaries in the order `fc` takes them, where they came from, and what a person should know of them."""

    boundaries: tuple[int, ...]
    source: str
    notes: tuple[str, ...] = ()


def default_boundaries(num_layers: int) -> tuple[int, ...]:
    """EAGLE-3's [2, L // 2, L - 3] in ascending order; two where they coincide, none where L is too small."""
    found = {2, num_layers // 2, num_layers - 3}
    return tuple(sorted(b for b in found if 0 <= b <= num_layers))


def resolve_taps(config: Fields, num_layers: int, num_taps: int | None, override: Sequence[int] | None = None) -> Taps:
    """Decides the taps.

    Args:
        config: the drafter's config.json, top level.
        num_layers: L, of the target.
        num_taps: how many `fc` takes; None if there is no `fc`.
        override: boundaries that a user gave, in `fc`'s order; they win.

    Raises:
        DrafterError: the ids are malformed, out of range, repeated, contradictory, or not as many as `fc` takes.
    """
    if override is not None:
        taps = Taps(tuple(override), "given by the user")
    else:
        taps = _named(config, num_layers) or _default(num_layers)
    check_taps(taps, num_layers, num_taps)
    return taps


def _named(config: Fields, num_layers: int) -> Taps | None:
    """From the config. Two fields may both be there if they agree: one is written for vLLM, the other for SGLang."""
    found = [taps for taps in (_top_level(config, num_layers), *_outputs(config, num_layers)) if taps is not None]
    for other in found[1:]:
        if other.boundaries != found[0].boundaries:
            raise DrafterError(f"{found[0].source}, but {other.source}: these are different taps; {_REMEDY}")
    return found[0] if found else None


def _top_level(config: Fields, num_layers: int) -> Taps | None:
    ids = _ids(config.get(IDS), IDS)
    if ids is None:
        return None
    notes = _order_notes(ids)
    if sorted(ids) == [1, num_layers // 2 - 1, num_layers - 4]:
        notes += (
            f"{IDS} {list(ids)} is EAGLE-3's default written as layer outputs, but this field names layer inputs; if "
            f"the first draft is rarely accepted, try aux_boundaries={default_boundaries(num_layers)}",
        )
    return Taps(tuple(sorted(ids)), f"{IDS} names layer inputs {list(ids)}", notes)


def _outputs(config: Fields, num_layers: int) -> list[Taps | None]:
    eagle = config.get("eagle_config")
    nested = eagle.get(IDS) if isinstance(eagle, dict) else None
    pairs = ((f"eagle_config.{IDS}", nested), (ANGELSLIM_IDS, config.get(ANGELSLIM_IDS)))
    return [_from_outputs(name, value, num_layers) for name, value in pairs]


def _from_outputs(name: str, value: Any, num_layers: int) -> Taps | None:
    ids = _ids(value, name)
    if ids is None:
        return None
    notes = _order_notes(ids)
    if tuple(sorted(ids)) == default_boundaries(num_layers):
        notes += (
            f"{name} {list(ids)} is EAGLE-3's default written as layer inputs, but this field names layer outputs; if "
            f"the first draft is rarely accepted, try aux_boundaries={default_boundaries(num_layers)}",
        )
    return Taps(tuple(sorted(i + 1 for i in ids)), f"{name} names layer outputs {list(ids)}", notes)


def _ids(value: Any, name: str) -> tuple[int, ...] | None:
    """An empty list is as good as none."""
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        raise DrafterError(f"{name} is {value!r}; it must be a list of layer ids")
    return tuple(value)


def _order_notes(ids: tuple[int, ...]) -> tuple[str, ...]:
    return () if list(ids) == sorted(ids) else (f"layer ids {list(ids)} are taken in ascending order, as engines do",)


def _default(num_layers: int) -> Taps:
    return Taps(
        default_boundaries(num_layers),
        f"its config names none, so EAGLE-3's default [2, L // 2, L - 3] for L = {num_layers} is assumed",
        ("a wrong guess of the taps shows as a first draft that is rarely accepted; then give aux_boundaries",),
    )


def check_taps(taps: Taps, num_layers: int, num_taps: int | None) -> None:
    """Raises DrafterError unless the boundaries exist, differ, and are as many as `fc` takes (None: no `fc`, one)."""
    shown = f"taps at boundaries {list(taps.boundaries)} ({taps.source})"
    if outside := [b for b in taps.boundaries if not 0 <= b <= num_layers]:
        raise DrafterError(
            f"{shown}: {outside[0]} is outside 0 … {num_layers}, the boundaries of the target's {num_layers} layers; "
            f"the drafter was made for another target, or {_REMEDY}"
        )
    if len(set(taps.boundaries)) != len(taps.boundaries):
        raise DrafterError(f"{shown}: one is named twice; {_REMEDY}")
    if num_taps is not None and len(taps.boundaries) != num_taps:
        raise DrafterError(f"{shown} are {len(taps.boundaries)}, but fc.weight takes {num_taps}; {_REMEDY}")
    if num_taps is None and len(taps.boundaries) != 1:
        raise DrafterError(
            f"{shown} are {len(taps.boundaries)}, but there is no fc.weight to join them: the checkpoint is "
            "incomplete, or of EAGLE 1 or 2, which are not served"
        )
