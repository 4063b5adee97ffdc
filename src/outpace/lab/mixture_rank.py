"""One tensor-parallel rank of Kimi-K2.5 or DeepSeek-V3 as a model of its own: its share of every size, random weights,
drawn routing.

Weights are made in their packed form on the device. Which experts a token goes through is drawn: random weights would
route neighbouring tokens alike or not by accident. The router's work is done all the same, and its choice left unused.

Sizes are those of moonshotai/Kimi-K2.5's and deepseek-ai/DeepSeek-V3's config.json. Kimi packs routed experts alone, in
INT4; DeepSeek packs all products but the router and the head, in FP8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outpace.kernels.fp8 import Fp8
from outpace.kernels.packed import PackedWeight
from outpace.kernels.reuse import NO_REUSE, Reuse, among_open
from outpace.lab.weights import num_bytes_of
from outpace.models.arch import LatentConfig, MixtureConfig, RopeConfig, TargetConfig
from outpace.models.linear import Linear
from outpace.models.mixture import Mixture
from outpace.models.packed import Format, Packing
from outpace.models.target import Target

SEED = 0
WEIGHT_STD = 0.02
INT4_SCALE = 0.004
"""Numbers of -8 … 7 times this have about `WEIGHT_STD`."""
FP8_BITS = -0x40404041
"""Of a word: no number of four reaches 2, and none is NaN."""
FP8_SCALE = 0.03


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


def deepseek_rank(num_layers: int, ranks: int = 8) -> TargetConfig:
    """A rank's share of DeepSeek-V3."""
    kimi = kimi_rank(num_layers, ranks)
    assert kimi.mixture is not None
    return replace(
        kimi,
        vocab_size=129280 // ranks,
        num_heads=128 // ranks,
        num_kv_heads=128 // ranks,
        norm_eps=1e-6,
        rope=RopeConfig(theta=10000.0),
        max_positions=163840,
        mixture=replace(
            kimi.mixture,
            num_experts=256,
            num_groups=8,
            num_chosen_groups=4,
            scale=2.5,
            layers=tuple(layer >= 3 for layer in range(num_layers)),
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


RANKS: dict[str, tuple[Callable[[int], TargetConfig], Format]] = {
    "kimi-k2.5-tp8": (kimi_rank, "int4"),
    "deepseek-v3-tp8": (deepseek_rank, "fp8"),
    "tiny": (tiny_rank, "int4"),
    "tiny-fp8": (tiny_rank, "fp8"),
}
"""By name: a rank of so many layers, and how its weights lie."""


def packing_of(config: TargetConfig, form: Format) -> Packing:
    """What stays packed: routed experts; in FP8 all products of `PRODUCTS` that there are."""
    assert config.mixture is not None
    layers = frozenset(layer for layer, there in enumerate(config.mixture.layers) if there)
    if form != "fp8":
        return Packing(layers, form)
    attention = {"attention.down", "attention.q_up", "attention.output"}
    mlp = {True: {"mlp.shared.gate_up", "mlp.shared.down"}, False: {"mlp.gate_up", "mlp.down"}}
    products = [(i, path) for i in range(config.num_layers) for path in attention | mlp[i in layers]]
    return Packing(layers, form, frozenset(products))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A model, and the experts that its tokens go through until they are drawn again."""

    model: Target
    experts_LTC: Tensor
    """int32: of every layer with experts, of so many tokens at most."""

    @classmethod
    def make(
        cls, config: TargetConfig, form: Format, max_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> Drawn:
        """Makes the model; about 1.2 GB a layer of Kimi's share, 1.5 GB of DeepSeek's."""
        assert config.mixture is not None
        torch.manual_seed(SEED)
        model = Target(config, dtype=dtype, device=device, packing=packing_of(config, form))
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, WEIGHT_STD)
        for module in model.modules():
            if isinstance(module, Linear) and module.held is not None:
                _randomise(module.held)
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

    def draw(self, reuse: Reuse = NO_REUSE) -> None:
        """Draws anew, every set of experts alike likely; a token's differ. With `reuse` the first row's share some."""
        L, T, C = self.experts_LTC.shape
        assert self.model.config.mixture is not None
        noise = torch.rand((L, T, self.model.config.mixture.num_experts), device=self.experts_LTC.device)
        if reuse.num and reuse.tokens_a_row > 1:
            for of_layer in noise[:, : reuse.tokens_a_row]:
                of_layer.copy_(among_open(of_layer, C, reuse))
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
        return num_bytes_of([*self.model.layers, self.model.lm_head, self.model.norm])


def _randomise(weights: PackedWeight) -> None:
    weights.words.view(torch.int64).random_()
    if isinstance(weights, Fp8):
        weights.words.bitwise_and_(FP8_BITS)
        weights.scales.fill_(FP8_SCALE)
    else:
        bits = int(torch.tensor(INT4_SCALE, dtype=weights.dtype).view(torch.int16))
        weights.scales.fill_(bits << 16 | bits)


def _leave_to_the_draw(mixture: Mixture, experts_TC: Tensor) -> None:
    """Routing does its work; then the drawn experts take the places of those that it chose."""
    by_kernels, plainly = mixture.route, mixture.choose

    def route(x_TH: Tensor, reuse: Reuse = NO_REUSE) -> tuple[Tensor, Tensor]:
        return experts_TC[: len(x_TH)], by_kernels(x_TH, reuse)[1]

    def choose(x_TH: Tensor, reuse: Reuse = NO_REUSE) -> tuple[Tensor, Tensor]:
        return experts_TC[: len(x_TH)].long(), plainly(x_TH, reuse)[1]

    mixture.__dict__.update(route=route, choose=choose)
