"""A rank of a large mixture (`ranks`) as a model of its own: random weights, drawn routing.

Weights are made in their packed form on the device. Which experts a token goes through is drawn: random weights would
route neighbouring tokens alike or not by accident. The router's work is done all the same, and its choice left unused.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.kernels.fp8 import Fp8
from outpace.kernels.packed import PackedWeight
from outpace.kernels.reuse import NO_REUSE, Reuse, among_open
from outpace.lab.shapes.ranks import packing_of
from outpace.lab.shapes.weights import num_bytes_of
from outpace.models.arch import TargetConfig
from outpace.models.linear import Linear
from outpace.models.mixture import Mixture
from outpace.models.packed import Format
from outpace.models.target import Target

SEED = 0
WEIGHT_STD = 0.02
INT4_SCALE = 0.004
"""Numbers of -8 … 7 times this have about `WEIGHT_STD`."""
FP8_BITS = -0x40404041
"""Of a word: no number of four reaches 2, and none is NaN."""
FP8_SCALE = 0.03


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
    by_kernels, plainly = mixture.choose_by, mixture.choose

    def choose_by(logits: Tensor, reuse: Reuse = NO_REUSE) -> tuple[Tensor, Tensor]:
        return experts_TC[: logits.shape[-2]], by_kernels(logits, reuse)[1]

    def choose(x_TH: Tensor, reuse: Reuse = NO_REUSE) -> tuple[Tensor, Tensor]:
        return experts_TC[: len(x_TH)].long(), plainly(x_TH, reuse)[1]

    mixture.__dict__.update(choose_by=choose_by, choose=choose)
