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

    Scores are the softmax over all experts; a token's output is the sum of its experts' outputs, weighted by them.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """One decoder-only target. `windows[i]` is how many tokens layer i sees, itself included; None is all."""

    architecture: str
    """llama, mistral, qwen2, qwen3, mixtral or qwen3_moe."""
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
    eos_token_ids: tuple[int, ...] = ()
    """Every one of them ends an answer; see `ends`."""
