"""Resolves any drafter's config and tensors to one internal form: the wiring, the weights, the target ids.

Only shapes and the two vocabulary maps are read here. What is decided comes from the config where it says, from the
tensors where they show, and from the target for the rest; where two of them contradict each other the drafter is
refused, because a drafter that is wired wrongly works, slowly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from outpace.errors import DrafterError
from outpace.models.arch import RopeConfig, TargetConfig
from outpace.models.drafters.draft_ids import resolve_draft_ids
from outpace.models.drafters.recognise import has_latents, layer_prefix, name_dialect, refuse_other_methods
from outpace.models.drafters.shape import (
    bias_notes,
    count_taps,
    num_rows,
    read_fusion_norm,
    read_latent_shape,
    read_max_positions,
    read_shape,
    refuse_other_maths,
)
from outpace.models.drafters.taps import resolve_taps
from outpace.models.fields import Fields
from outpace.models.hf.rope import read_rope
from outpace.models.wiring import DrafterWiring, Owner

_UNUSED = ("verifier_norm.weight", "verifier_lm_head.weight")
"""Copies of target weights that speculators needs for training."""


class Renamed(Mapping[str, Tensor]):
    """Tensors of a file under other names, fetched from it when asked for."""

    def __init__(self, tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> None:
        self.tensors, self.names = tensors, names

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def without(self, *absent: str) -> Renamed:
        return Renamed(self.tensors, {name: where for name, where in self.names.items() if name not in absent})


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a drafter's files come to: the wiring, its weights by the names in the file, the target ids it proposes."""

    wiring: DrafterWiring
    tensors: Renamed
    target_ids_V: Tensor


def resolve(
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    target: TargetConfig,
    *,
    aux_boundaries: Sequence[int] | None = None,
) -> Resolved:
    """Decides everything about a drafter, reading only shapes and the two vocabulary maps.

    Args:
        config: its config.json.
        tensors: its weights, by their names in the file; `model.` before a name is dropped.
        target: what it is to draft for.
        aux_boundaries: taps in `fc`'s order, when the user knows better than the config.

    Raises:
        CheckpointError: a field is missing or malformed.
        DrafterError: it is of another method, or contradicts itself or the target.
    """
    top = Fields(config, "config.json")
    layer = _layer_fields(top)
    weights = Renamed(tensors, {name.removeprefix("model."): name for name in tensors}).without(*_UNUSED)
    refuse_other_methods(top, weights)
    prefix = layer_prefix(layer, weights)
    refuse_other_maths(layer)
    _check_verifier(layer, target)
    latent = has_latents(weights, prefix)
    shape = (read_latent_shape if latent else read_shape)(layer, weights, lambda name: prefix + name)
    num_taps = count_taps(weights, shape.hidden_size, target.hidden_size, _target_hidden(top))
    taps = resolve_taps(top, target.num_layers, num_taps, aux_boundaries)
    head, num_drafts = _head(top, layer, weights, target)
    ids = resolve_draft_ids(weights.get("d2t"), weights.get("t2d"), num_drafts, target.vocab_size)
    embedding, embedding_source = _embedding(weights, shape.hidden_size, target)
    max_positions, positions_source = read_max_positions(layer)
    dialect = name_dialect(top, num_drafts == target.vocab_size, latent)
    rope = read_rope(layer.values, max_positions, layer.origin)
    wiring = DrafterWiring(
        dialect=dialect,
        prefix=prefix,
        shape=shape,
        aux_boundaries=taps.boundaries,
        aux_source=taps.source,
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=num_drafts,
        d2t=ids.kind,
        embedding=embedding,
        embedding_source=embedding_source,
        lm_head=head,
        has_fc=num_taps is not None,
        fusion_norm=read_fusion_norm(top, weights),
        norm_before_residual=top.flag("norm_before_residual"),
        norm_output=top.flag("norm_output"),
        rope=rope,
        max_positions=max_positions,
        max_positions_source=positions_source,
        notes=(
            *taps.notes,
            *ids.notes,
            *bias_notes(layer, shape),
            *_head_notes(head),
            *_rope_notes(rope, dialect),
            *_verifier_notes(top, target, dialect),
            *_code_notes(top),
        ),
    )
    return Resolved(wiring, weights.without("d2t", "t2d"), ids.target_ids_V)


def _layer_fields(top: Fields) -> Fields:
    """The fields that describe the layer: speculators nests them."""
    nested = top.get("transformer_layer_config")
    if nested is None:
        return top
    if not isinstance(nested, dict):
        raise DrafterError(f"transformer_layer_config is {nested!r}; it must be an object")
    return Fields(nested, "config.json, transformer_layer_config")


def _check_verifier(layer: Fields, target: TargetConfig) -> None:
    vocab_size = layer.integer("vocab_size", target.vocab_size)
    if vocab_size != target.vocab_size:
        raise DrafterError(
            f"its vocab_size is {vocab_size}, the target's is {target.vocab_size}: it was made for another target"
        )


def _target_hidden(top: Fields) -> int | None:
    return None if top.get("target_hidden_size") is None else top.integer("target_hidden_size")


def _head(top: Fields, layer: Fields, weights: Mapping[str, Tensor], target: TargetConfig) -> tuple[Owner, int]:
    """Whose head it is and how many tokens it proposes."""
    told = None if top.get("draft_vocab_size") is None else top.integer("draft_vocab_size")
    if "lm_head.weight" in weights:
        held = num_rows(weights, "lm_head.weight")
        if told is not None and told != held:
            raise DrafterError(f"draft_vocab_size is {told}, but lm_head.weight has {held} rows; fetch both again")
        return "own", held
    if told not in (None, target.vocab_size) or "d2t" in weights:
        raise DrafterError(
            f"it lacks lm_head.weight and proposes a reduced vocabulary (draft_vocab_size {told}); it is incomplete"
        )
    hidden = layer.integer("hidden_size", target.hidden_size)
    tied = layer.flag("tie_word_embeddings") and "embed_tokens.weight" in weights
    if hidden != target.hidden_size or tied:
        raise DrafterError(
            f"it lacks lm_head.weight, and the target's head, {target.hidden_size} wide, cannot stand in for it "
            f"(hidden_size {hidden}, own embeddings tied: {tied}); it is incomplete"
        )
    return "target", target.vocab_size


def _embedding(weights: Mapping[str, Tensor], hidden: int, target: TargetConfig) -> tuple[Owner, str]:
    if "embed_tokens.weight" in weights:
        return "own", "its own"
    if hidden != target.hidden_size:
        raise DrafterError(
            f"it has no embed_tokens.weight, and the target's embeddings are {target.hidden_size} wide while its "
            f"hidden_size is {hidden}; it is incomplete, or made for another target"
        )
    return "target", "the target's, as the file has none"


def _code_notes(top: Fields) -> tuple[str, ...]:
    absent = top.get("auto_map") is None
    return () if absent else ("auto_map is ignored: code that a checkpoint brings is never run",)


def _head_notes(head: Owner) -> tuple[str, ...]:
    return ("the file has no lm_head: the target's is used, as SGLang and vLLM do",) if head == "target" else ()


def _rope_notes(rope: RopeConfig, dialect: str) -> tuple[str, ...]:
    """ModelOpt trains with plain rotary positions and may write a stretched setting when it exports."""
    if dialect != "modelopt" or rope.kind != "yarn":
        return ()
    return (f"its YaRN factor {rope.factor:g} was put in at export by ModelOpt, which trains without",)


def _verifier_notes(top: Fields, target: TargetConfig, dialect: str) -> tuple[str, ...]:
    if dialect != "speculators":
        return ()
    notes = []
    if top.get("norm_before_residual") is None:
        notes.append("norm_before_residual is not given: false, as in speculators itself (vLLM assumes true)")
    described = top.get("speculators_config")
    verifier = described.get("verifier") if isinstance(described, dict) else None
    names = verifier.get("architectures") if isinstance(verifier, dict) else None
    if isinstance(names, list) and names and not any(target.architecture in str(name).lower() for name in names):
        notes.append(f"it was made for {names}, and the target is a {target.architecture}")
    return tuple(notes)
