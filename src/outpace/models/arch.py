"""What a target is, as numbers: everything its forward needs to know, whatever file it was read from.

`hf_config` fills it from a config.json and `gguf` from a GGUF header, so that nothing below this file knows
about formats. Sizes are in elements, positions and windows in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "llama3", "yarn"]

MAX_LAYERS = 1024
MAX_WIDTH = 1 << 18
"""Of hidden states and MLPs."""
MAX_HEADS = 4096
MAX_HEAD_DIM = 4096
MAX_VOCAB = 1 << 22
MAX_EXPERTS = 1 << 14
MAX_POSITIONS = 1 << 24
"""Larger sizes, several times those of any model, mean a damaged file and are refused before memory is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding. Fields of other kinds than `kind` are not read; the formulas are in `rope`."""

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    """How much the context was stretched: linear, llama3 and yarn."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    """Positions the model saw before it was stretched: llama3 and yarn."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """yarn's scale on cos and sin; None means 0.1 ln(factor) + 1."""
    truncate: bool = True
    """yarn: whether the corrected range is rounded outwards to whole dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureConfig:
    """A mixture of experts in place of some layers' MLP: every token goes through the few that its router scores best.

    A token's output is the sum of its experts' outputs, weighted by their scores, and of what all tokens go through.
    """

    num_experts: int
    num_chosen: int
    """Experts a token goes through."""
    intermediate_size: int
    """Of one expert."""
    normalizes: bool
    """Whether the chosen scores are divided by their sum."""
    layers: tuple[bool, ...]
    """Which layers have it; the others keep an MLP."""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    """Of the router's logits: over all experts, or each by itself."""
    num_groups: int = 1
    num_chosen_groups: int = 1
    """Only experts of the best groups may be chosen: those with the best expert, or with `corrects` the best two."""
    corrects: bool = False
    """Whether a bias is added to the scores to choose by, not to weigh by."""
    scale: float = 1.0
    """Of the scores, in the end."""
    shared_size: int = 0
    """Intermediate size of the MLP that every token goes through; 0 is none."""
    routes_in_float32: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Multi-head latent attention: keys and values of all heads are made from one latent a token, which is cached.

    Source: DeepSeek-V2, arXiv:2405.04434. A head's query and key have a part that is not turned and one that is; the
    key's turned part is one for all heads. `TargetConfig.head_dim` is the turned part.
    """

    kv_rank: int
    """Of the latent."""
    q_rank: int | None
    """Of the queries' own latent; None makes queries directly."""
    plain_dim: int
    """Of a head's query and key, the part that is not turned."""
    value_dim: int
    """Of a head."""
    scale: float
    """Of the softmax: (plain + turned) ** -0.5, times what yarn adds."""
    interleaved: bool
    """Whether the checkpoint's turned dimensions lie in pairs, not in halves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """One decoder-only target. `windows[i]` is how many tokens layer i sees, itself included; None is all."""

    architecture: str
    """The model_type of its config.json; kimi_k2 and kimi_k25 are deepseek_v3."""
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope: RopeConfig
    max_positions: int
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = False
    windows: tuple[int | None, ...]
    mixture: MixtureConfig | None = None
    latent: LatentConfig | None = None
    num_further_layers: int = 0
    """Layers behind the last that a checkpoint may hold to predict further tokens; they are not loaded."""
    eos_token_ids: tuple[int, ...] = ()
    """Every one of them ends an answer; see `ends`."""

    @property
    def num_cached_heads(self) -> int:
        """Heads of the keys and values that are cached."""
        return self.num_kv_heads if self.latent is None else 1

    @property
    def key_dim(self) -> int:
        """Elements of a cached key; a latent is cached with the turned part of the key behind it."""
        return self.head_dim if self.latent is None else self.latent.kv_rank + self.head_dim

    @property
    def shared_value_dim(self) -> int | None:
        """How many elements of a cached key are the value; None if values are cached beside the keys."""
        return None if self.latent is None else self.latent.kv_rank
