"""Tiny random models for engine tests, and a drafter whose acceptance can be dialled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outpace import LLM, EngineConfig
from outpace.models.arch import RopeConfig, TargetConfig
from outpace.models.drafter import Drafter
from outpace.models.registry import LoadedTarget
from outpace.models.source import Source
from outpace.models.target import Target

VOCAB = 61
HIDDEN = 32


def tiny_config(**changes: object) -> TargetConfig:
    """A three-layer Llama with grouped heads."""
    settings: dict[str, object] = {
        "architecture": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "norm_eps": 1e-5,
        "rope": RopeConfig(theta=10000.0),
        "max_positions": 128,
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
        "tie_embeddings": False,
        "windows": (None, None, None),
        "eos_token_ids": (),
    }
    return TargetConfig(**(settings | changes))  # type: ignore[arg-type]


def tiny_target(seed: int = 0, **changes: object) -> LoadedTarget:
    """A random target sharp enough that no two best logits are close."""
    torch.manual_seed(seed)
    target = Target(tiny_config(**changes))
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 1.0 if "embed" in name else 0.25)
    return LoadedTarget(config=target.config, model=target, tokenizer=None, source=_source())


def _source() -> Source:
    return Source(kind="directory", path="tiny", name="tiny")  # type: ignore[arg-type]


def tiny_drafter(target: LoadedTarget, seed: int = 1, **changes: object) -> Drafter:
    """A random EAGLE-3 drafter: it agrees with the target by chance alone."""
    torch.manual_seed(seed)
    return Drafter.create(target.model, draft_ids=None, **changes)  # type: ignore[arg-type]


class OracleDrafter(nn.Module):
    """Knows the plain answers and is wrong in a fixed share of places, so acceptance lies where a test wants it."""

    def __init__(
        self, answers: Iterable[Sequence[int]], accuracy: float, max_positions: int = 128, hidden_size: int = HIDDEN
    ) -> None:
        super().__init__()
        known = [answer for answer in answers if len(answer) > 1]
        said_PV = torch.zeros(max([max_positions, *map(len, known)]) + 64, VOCAB, dtype=torch.int64)
        for answer in known:
            said_PV[torch.arange(len(answer) - 1), torch.tensor(answer[:-1])] = torch.tensor(answer[1:])
        places = torch.cartesian_prod(*(torch.arange(size) for size in said_PV.shape)).tolist()
        right = torch.tensor([hash((position, token)) % 1000 < 1000 * accuracy for position, token in places])
        self.said_PV: Tensor
        self.register_buffer("said_PV", torch.where(right.view_as(said_PV), said_PV, (said_PV + 1) % VOCAB))
        self.target_ids_V: Tensor
        self.register_buffer("target_ids_V", torch.arange(VOCAB))
        self.num_cached_heads = 1
        self.wiring = SimpleNamespace(
            key_dim=4,
            shared_value_dim=None,
            kv_elements_per_head=8,
            hidden_size=2,
            aux_boundaries=(0, 1, 2),
            target_hidden_size=hidden_size,
            max_positions=max_positions,
            describe=lambda: {"dialect": "oracle"},
        )

    def fuse(self, features_BSF: Tensor) -> Tensor:
        return features_BSF[..., :2]

    def forward(
        self, tokens_BS: Tensor, hidden_BSH: Tensor, positions_BS: Tensor, attend: object, ahead: int = 0
    ) -> tuple[Tensor, Tensor]:
        out = torch.stack((tokens_BS, positions_BS + ahead + 1), dim=-1).float()
        return hidden_BSH, out

    def store(
        self, tokens_BS: Tensor, hidden_BSH: Tensor, positions_BS: Tensor, attend: object, ahead: int = 0
    ) -> None:
        """Nothing: what it says hangs on the newest token alone."""

    def logits(self, out: Tensor) -> Tensor:
        tokens, positions = out.long().unbind(-1)
        return 1e4 * F.one_hot(self.said_PV[positions, tokens], VOCAB).float()


def engine(target: LoadedTarget, drafter: nn.Module | None = None, **options: object) -> LLM:
    """An LLM over tiny models with small pages."""
    settings: dict[str, object] = {
        "k": 4,
        "control": "fixed",
        "page_size": 4,
        "num_pages": 400,
        "max_rows": 16,
        "prefill_chunk": 16,
        "capture_s": 0.0,
    }
    return LLM.from_parts(target, drafter, EngineConfig(**(settings | options)))  # type: ignore[arg-type]
