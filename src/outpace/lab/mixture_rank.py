"""One tensor-parallel rank of Kimi-K2.5 as a model of its own: its share of every size, random weights, drawn routing.

Weights are made in their packed form on the device. Which experts a token goes through is drawn: random weights would
route neighbouring tokens alike or not by accident. The router's work is done all the same, and its choice left unused.

Sizes are those of moonshotai/Kimi-K2.5's config.json; the published checkpoint packs routed experts alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outpace.kernels.int4 import Int4
from outpace.models.arch import LatentConfig, MixtureConfig, RopeConfig, TargetConfig
from outpace.models.layers import Linear
from outpace.models.mixture import Mixture
from outpace.models.packed import Packing
from outpace.models.target import Target

SEED = 0
WEIGHT_STD = 0.02
INT4_SCALE = 0.004
"""Numbers of -8 … 7 times this have about `WEIGHT_STD`."""


def kimi_rank(num_layers: int, ranks: int = 8) -> TargetConfig:
    """A rank's share: heads, MLPs, experts and vocabulary cut, latents and router whole."""
    plain, turned = 128, 64
    mixture = MixtureConfig(
        num_experts=384,
        num_chosen=8,
        intermediate_size=2048 // ranks,
        normalizes=True,
        layers=tuple(layer >= 1 for layer in range(num_layers)),
        scoring="sigmoid",
        corrects=True,
        scale=2.827,
        shared_size=2048 // ranks,
        routes_in_float32=True,
    )
    return TargetConfig(
        architecture="deepseek_v3",
        vocab_size=163840 // ranks,
        hidden_size=7168,
        num_layers=num_layers,
        num_heads=64 // ranks,
        num_kv_heads=64 // ranks,
        head_dim=turned,
        intermediate_size=18432 // ranks,
        norm_eps=1e-5,
        rope=RopeConfig(theta=50000.0),
        max_positions=262144,
        windows=(None,) * num_layers,
        mixture=mixture,
        latent=LatentConfig(
            kv_rank=512,
            q_rank=1536,
            plain_dim=plain,
            value_dim=128,
            scale=(plain + turned) ** -0.5,
            interleaved=False,
        ),
    )


def tiny_rank(num_layers: int) -> TargetConfig:
    """The same architecture for tests on a CPU."""
    whole = kimi_rank(num_layers)
    assert whole.mixture is not None and whole.latent is not None
    return replace(
        whole,
        vocab_size=256,
        hidden_size=64,
        num_heads=2,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=48,
        mixture=replace(whole.mixture, num_experts=24, num_chosen=3, intermediate_size=32, shared_size=32),
        latent=replace(whole.latent, kv_rank=16, q_rank=32, plain_dim=8, value_dim=8),
    )


RANKS = {"kimi-k2.5-tp8": kimi_rank, "tiny": tiny_rank}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A model, and the experts that its tokens go through until they are drawn again."""

    model: Target
    experts_LTC: Tensor
    """int32: of every layer with experts, of so many tokens at most."""

    @classmethod
    def make(cls, config: TargetConfig, max_tokens: int, dtype: torch.dtype, device: torch.device) -> Drawn:
        """Makes the model; about 1.2 GB a layer of Kimi's share."""
        assert config.mixture is not None
        torch.manual_seed(SEED)
        layers = frozenset(layer for layer, there in enumerate(config.mixture.layers) if there)
        model = Target(config, dtype=dtype, device=device, packing=Packing(layers, "int4"))
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, WEIGHT_STD)
        mixtures = [module for module in model.modules() if isinstance(module, Mixture)]
        experts = torch.zeros((len(mixtures), max_tokens, config.mixture.num_chosen), dtype=torch.int32, device=device)
        for mixture, experts_TC in zip(mixtures, experts, strict=True):
            assert mixture.packed is not None
            _randomise(mixture.packed.gate_up)
            _randomise(mixture.packed.down)
            if mixture.correction_E is not None:
                mixture.correction_E.zero_()
            _leave_to_the_draw(mixture, experts_TC)
        model.pack()
        drawn = cls(model, experts)
        drawn.draw()
        return drawn

    @property
    def mixtures(self) -> list[Mixture]:
        return [module for module in self.model.modules() if isinstance(module, Mixture)]

    def draw(self) -> None:
        """Draws anew, every set of experts alike likely; a token's differ."""
        L, T, C = self.experts_LTC.shape
        assert self.model.config.mixture is not None
        noise = torch.rand((L, T, self.model.config.mixture.num_experts), device=self.experts_LTC.device)
        self.experts_LTC.copy_(noise.topk(C, dim=-1).indices)

    def distinct(self, num_tokens: int) -> Tensor:
        """How many experts of each layer the first so many tokens touch, int64 [L], counted on the device."""
        assert self.model.config.mixture is not None
        L, num_experts = len(self.experts_LTC), self.model.config.mixture.num_experts
        touched_LE = torch.zeros((L, num_experts), dtype=torch.int64, device=self.experts_LTC.device)
        return touched_LE.scatter_(1, self.experts_LTC[:, :num_tokens].flatten(1).long(), 1).sum(1)

    @property
    def expert_bytes(self) -> int:
        """Of one expert."""
        first = self.mixtures[0]
        assert first.packed is not None
        return first.packed.num_bytes // first.config.num_experts

    @property
    def other_bytes(self) -> int:
        """Of the weights that every forward reads: all but experts and embeddings."""
        model = self.model
        tensors: list[Tensor] = []
        for part in (model.layers, model.lm_head, model.norm):
            tensors += part.parameters()
        for module in model.modules():  # on a CPU products have their own layout
            if isinstance(module, Linear) and module.packed is not None:
                tensors.append(module.packed)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _randomise(weights: Int4) -> None:
    weights.words.view(torch.int64).random_()
    bits = int(torch.tensor(INT4_SCALE, dtype=weights.dtype).view(torch.int16))
    weights.scales.fill_(bits << 16 | bits)


def _leave_to_the_draw(mixture: Mixture, experts_TC: Tensor) -> None:
    """Routing does its work; then the drawn experts take the places of those that it chose."""
    by_kernels, plainly = mixture.route, mixture.choose

    def route(x_TH: Tensor) -> tuple[Tensor, Tensor]:
        return experts_TC[: len(x_TH)], by_kernels(x_TH)[1]

    def choose(x_TH: Tensor) -> tuple[Tensor, Tensor]:
        return experts_TC[: len(x_TH)].long(), plainly(x_TH)[1]

    mixture.__dict__.update(route=route, choose=choose)
