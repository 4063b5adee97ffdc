"""Everything that was decided about a drafter when it was loaded, as data that is kept and shown.

Six trainers write EAGLE-3 drafters in as many spellings, and a wrong guess (a tap one layer off, an offset read as an
id) costs acceptance without an error. So each decision has its value and where it came from, in one object that the
engine computes by, `inspect` prints and `save_drafter` writes back.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from outpace.models.arch import LatentConfig, RopeConfig

D2tKind = Literal["offset", "absolute", "none"]
Owner = Literal["own", "target"]
FusionNorm = Literal["none", "whole", "per_tap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """Sizes of the drafter's one layer, and which optional tensors it has."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    fc_bias: bool = False
    qk_norm: bool = False
    """Norms of each query and key head, as in Qwen3."""
    latent: LatentConfig | None = None
    """Latent attention, as in DeepSeek-V3; `head_dim` is then the part of a head that is turned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterWiring:
    """How a drafter is joined to its target."""

    dialect: str
    """Who wrote it: safeailab, specforge, speculators, modelopt, lightseek, angelslim or mla."""
    prefix: str
    """Of the layer's tensors in the file: "midlayer." or "layers.0."."""
    shape: LayerShape
    aux_boundaries: tuple[int, ...]
    """Taps, in the order `fc` takes them: boundary b is the input of the target's layer b."""
    aux_source: str
    """Where they came from, in words."""
    target_hidden_size: int
    vocab_size: int
    """The target's vocabulary."""
    draft_vocab_size: int
    d2t: D2tKind
    """What the file's d2t holds; none: the drafter proposes every target token."""
    embedding: Owner
    embedding_source: str
    lm_head: Owner
    has_fc: bool
    """False: the one tap is taken as it is."""
    fusion_norm: FusionNorm = "none"
    """Norm before `fc`: over all taps at once (`input_norm`) or over each (`fc_norm.i`)."""
    norm_before_residual: bool = False
    """The layer's residual is the normed hidden state, not the hidden state itself."""
    norm_output: bool = False
    """The next draft step is fed the normed hidden state (EAGLE-3.1)."""
    rope: RopeConfig
    max_positions: int
    max_positions_source: str
    notes: tuple[str, ...] = ()
    """Whatever else a person should know, a sentence each."""

    @property
    def hidden_size(self) -> int:
        return self.shape.hidden_size

    @property
    def num_kv_heads(self) -> int:
        return self.shape.num_kv_heads

    @property
    def head_dim(self) -> int:
        return self.shape.head_dim

    @property
    def key_dim(self) -> int:
        """Elements of a cached key; a latent is cached with the turned part of the key behind it."""
        latent = self.shape.latent
        return self.head_dim if latent is None else latent.kv_rank + self.head_dim

    @property
    def shared_value_dim(self) -> int | None:
        """How many elements of a cached key are the value; None if values are cached beside the keys."""
        return None if self.shape.latent is None else self.shape.latent.kv_rank

    @property
    def kv_elements_per_head(self) -> int:
        """What a token takes in the cache of one of its heads."""
        return 2 * self.key_dim if self.shape.latent is None else self.key_dim

    def describe(self) -> dict[str, Any]:
        """All of it as JSON-able values, with the same in sentences under "sentences"."""
        return asdict(self) | {"sentences": self.sentences()}

    def sentences(self) -> list[str]:
        """The decisions in words, for a person."""
        return [
            f"read as the {self.dialect} dialect, its layer under {self.prefix!r}",
            f"taps the target at layer boundaries {', '.join(map(str, self.aux_boundaries))}: {self.aux_source}",
            self._vocabulary(),
            f"embedding: {self.embedding_source}; head: {self.lm_head}",
            *self._attention(),
            self._norms(),
            self._positions(),
            *self.notes,
        ]

    def _vocabulary(self) -> str:
        if self.draft_vocab_size == self.vocab_size:
            return f"proposes any of the target's {self.vocab_size} tokens (d2t: {self.d2t})"
        return f"proposes {self.draft_vocab_size} of the target's {self.vocab_size} tokens; d2t is read as {self.d2t}"

    def _attention(self) -> list[str]:
        latent = self.shape.latent
        if latent is None:
            return []
        return [f"latent attention: {latent.kv_rank} + {self.head_dim} elements cached a token, for all heads"]

    def _norms(self) -> str:
        residual = "normed" if self.norm_before_residual else "unnormed"
        fed = "normed" if self.norm_output else "unnormed"
        before = {"none": "no norm", "whole": "one norm over all taps", "per_tap": "a norm for each tap"}
        fusion = "fc" if self.has_fc else "no fc"
        return f"{before[self.fusion_norm]} before {fusion}; {residual} residual; next step is fed the {fed} state"

    def _positions(self) -> str:
        rope = self.rope
        scaling = "" if rope.kind == "default" else f", {rope.kind} factor {rope.factor:g}"
        limit = f"{self.max_positions} positions ({self.max_positions_source})"
        return f"rope theta {rope.theta:g}{scaling}; drafts up to {limit}"
