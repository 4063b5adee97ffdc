"""A mixture of experts: a router sends every token through a few of many small MLPs.

Source: Shazeer et al. 2017, arXiv:1701.06538; routing as Mixtral and Qwen3-MoE publish it.

Legend: B rows, S tokens a row, T = B·S, H hidden, E experts, C experts a token, I intermediate size of one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outpace.models.arch import MixtureConfig
from outpace.models.layers import Linear, fuses


class Mixture(nn.Module):
    """Σ over the chosen experts e of score · down_e(silu(gate_e(x)) · up_e(x)).

    An expert's weights are read once for all tokens that chose it, and not at all if none did. On a GPU a forward of
    many tokens asks the host which experts were chosen, so it cannot be part of a graph.
    """

    def __init__(
        self,
        hidden_size: int,
        config: MixtureConfig,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.config = config
        shape = (config.num_experts, 2 * config.intermediate_size, hidden_size)
        self.router = Linear(hidden_size, config.num_experts, dtype=dtype, device=device)
        self.gate_up = nn.Parameter(torch.empty(shape, dtype=dtype, device=device))
        shape = (config.num_experts, hidden_size, config.intermediate_size)
        self.down = nn.Parameter(torch.empty(shape, dtype=dtype, device=device))

    def forward(self, x_BSH: Tensor) -> Tensor:
        """[B, S, H]; on a GPU, for few tokens, its summands [C, B, S, H] in float32, one for each expert of a token."""
        x_TH = x_BSH.flatten(0, 1)
        if fuses(x_TH):
            from outpace.kernels.gpu import mixture as gpu

            if gpu.fits(x_TH, self.config.num_chosen):
                chosen = gpu.choose(self.router(x_TH), self.config.num_chosen, normalizes=self.config.normalizes)
                summands: Tensor = gpu.mixture(x_TH, *chosen, self.gate_up, self.down)
                return summands.view(-1, *x_BSH.shape)
        experts_TC, scores_TC = self.choose(x_TH)
        out_TH = torch.zeros(x_TH.shape, dtype=torch.float32, device=x_TH.device)
        for expert in experts_TC.unique().tolist():
            tokens, places = torch.where(experts_TC == expert)
            gate, up = F.linear(x_TH[tokens], self.gate_up[expert]).chunk(2, -1)
            y = F.linear(F.silu(gate) * up, self.down[expert])
            out_TH.index_add_(0, tokens, y.float() * scores_TC[tokens, places, None])
        return out_TH.to(x_BSH.dtype).view_as(x_BSH)

    __call__ = forward

    def choose(self, x_TH: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's experts, best first, int64 [T, C], and their scores, float32 [T, C]."""
        scores_TE = self.router(x_TH).float().softmax(-1)
        scores_TC, experts_TC = scores_TE.topk(self.config.num_chosen, dim=-1)
        if self.config.normalizes:
            scores_TC = scores_TC / scores_TC.sum(-1, keepdim=True)
        return experts_TC, scores_TC
