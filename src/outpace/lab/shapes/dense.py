"""Models of known shapes with random weights, made on the device: what a forward takes depends on shapes alone.

So the cost of a model can be measured where its checkpoint is not. What such a model writes is worth nothing; how often
its drafts are accepted is simulated (`EngineConfig.simulate_acceptance`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from outpace import LLM, ConfigError, EngineConfig
from outpace.distributed.group import ALONE, Group
from outpace.models.arch import RopeConfig, TargetConfig
from outpace.models.drafter import Drafter
from outpace.models.registry import LoadedTarget
from outpace.models.source import Source
from outpace.models.target import Target

SEED = 0
WEIGHT_STD = 0.02
DRAFT_VOCAB = 32000
"""Draft vocabulary of EAGLE-3's own drafters for Llama 3."""


def llama_8b() -> TargetConfig:
    """Llama-3.1-8B."""
    return _llama(128256, 4096, num_layers=32, num_heads=32, num_kv_heads=8, intermediate_size=14336)


def llama_1b() -> TargetConfig:
    """Llama-3.2-1B."""
    return _llama(
        128256, 2048, num_layers=16, num_heads=32, num_kv_heads=8, intermediate_size=8192, tie_embeddings=True
    )


def tiny() -> TargetConfig:
    """For tests on a CPU."""
    return _llama(512, 64, num_layers=3, num_heads=4, num_kv_heads=2, intermediate_size=96)


SHAPES: dict[str, Callable[[], TargetConfig]] = {"llama-8b": llama_8b, "llama-1b": llama_1b, "tiny": tiny}


def random_models(
    shape: str,
    *,
    drafter: bool,
    device: torch.device | str,
    dtype: torch.dtype,
    draft_vocab_size: int = DRAFT_VOCAB,
    group: Group = ALONE,
) -> tuple[LoadedTarget, Drafter | None]:
    """A target, and a drafter of its width beside it; always the same weights on one device. Seeds torch.

    Args:
        shape: of `SHAPES`.
        drafter: make one.
        device, dtype: of the weights.
        draft_vocab_size: ids that the drafter may propose, spread evenly over the vocabulary; at most all.
        group: ranks that share the models; all of them make the same share.

    Raises:
        ConfigError: the shape is unknown.
    """
    if shape not in SHAPES:
        raise ConfigError(f"shape {shape!r} is unknown; there are {', '.join(SHAPES)}")
    config = SHAPES[shape]()
    torch.manual_seed(SEED)
    model = Target(config, group=group, dtype=dtype, device=device)
    _randomise(model)
    made = None
    if drafter:
        num_ids = min(draft_vocab_size, config.vocab_size)
        made = Drafter.create(model, draft_ids=torch.arange(num_ids) * config.vocab_size // num_ids)
        made.pack()
    model.pack()
    source = Source(kind="directory", path=Path(shape), name=f"{shape} (random weights)")
    return LoadedTarget(config=config, model=model, tokenizer=None, source=source), made


def random_llm(
    shape: str,
    *,
    drafter: bool,
    device: torch.device | str,
    dtype: torch.dtype,
    draft_vocab_size: int = DRAFT_VOCAB,
    **options: Any,
) -> LLM:
    """An engine over `random_models`.

    Args:
        options: fields of `EngineConfig`.

    Raises:
        ConfigError: the shape is unknown, or a setting is out of range.
    """
    target, made = random_models(shape, drafter=drafter, device=device, dtype=dtype, draft_vocab_size=draft_vocab_size)
    return LLM.from_parts(target, made, EngineConfig(**options))


def _llama(
    vocab_size: int,
    hidden_size: int,
    *,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    intermediate_size: int,
    tie_embeddings: bool = False,
) -> TargetConfig:
    """No token ends an answer. The rope is unscaled: scaling costs nothing."""
    return TargetConfig(
        architecture="llama",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=hidden_size // num_heads,
        intermediate_size=intermediate_size,
        norm_eps=1e-5,
        rope=RopeConfig(theta=500_000.0),
        max_positions=131_072,
        tie_embeddings=tie_embeddings,
        windows=(None,) * num_layers,
    )


@torch.no_grad()
def _randomise(model: Target) -> None:
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, WEIGHT_STD)
