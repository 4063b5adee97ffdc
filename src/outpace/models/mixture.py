"""A mixture of experts: a router sends every token through a few of many small MLPs.

Source: Shazeer et al. 2017, arXiv:1701.06538; routing as Mixtral, Qwen3-MoE and DeepSeek publish it.

Legend: B rows, S tokens a row, T = B·S, H hidden, E experts, C experts a token, I intermediate size of one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outpace.distributed.group import ALONE, Group
from outpace.models.arch import MixtureConfig
from outpace.models.layers import GatedMLP, Linear, fuses
from outpace.models.parallel import whole
from outpace.models.shares import even_share


class Mixture(nn.Module):
    """Σ over the chosen experts e of score · down_e(silu(gate_e(x)) · up_e(x)), plus what all tokens go through.

    An expert's weights are read once for all tokens that chose it, and not at all if none did. On a GPU a forward of
    many tokens asks the host which experts were chosen, so it cannot be part of a graph.
    """

    correction_E: Tensor | None
    chosen_TC: Tensor
    """The experts that the tokens of the last forward went through."""

    def __init__(
        self,
        hidden_size: int,
        config: MixtureConfig,
        *,
        group: Group = ALONE,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.config = config
        router_dtype = torch.float32 if config.routes_in_float32 else dtype
        self.router = Linear(hidden_size, config.num_experts, dtype=router_dtype, device=device)
        correction = torch.empty(config.num_experts, device=device) if config.corrects else None
        self.register_buffer("correction_E", correction)
        self.columns = even_share(group, config.intermediate_size)
        shape = (config.num_experts, 2 * self.columns.size, hidden_size)
        self.gate_up = nn.Parameter(torch.empty(shape, dtype=dtype, device=device))
        shape = (config.num_experts, hidden_size, self.columns.size)
        self.down = nn.Parameter(torch.empty(shape, dtype=dtype, device=device))
        self.shared: GatedMLP | None = None
        if config.shared_size:
            self.shared = GatedMLP(hidden_size, config.shared_size, group=group, dtype=dtype, device=device)

    def forward(self, x_BSH: Tensor) -> Tensor:
        """[B, S, H]; on a GPU, for few tokens, its summands [C, B, S, H] in float32, one for each expert of a token."""
        x_TH = x_BSH.flatten(0, 1)
        if fuses(x_TH) and self._why_unknown is None:
            from outpace.kernels.gpu import mixture as gpu

            if gpu.fits(x_TH, self.config.num_chosen):
                chosen = gpu.choose(self.router(x_TH), self.config.num_chosen, normalizes=self.config.normalizes)
                self.chosen_TC = chosen[0]
                summands: Tensor = gpu.mixture(x_TH, *chosen, self.gate_up, self.down)
                return summands.view(-1, *x_BSH.shape)
        experts_TC, scores_TC = self.choose(x_TH)
        self.chosen_TC = experts_TC
        out_TH = torch.zeros(x_TH.shape, dtype=torch.float32, device=x_TH.device)
        for expert in experts_TC.unique().tolist():
            tokens, places = torch.where(experts_TC == expert)
            gate, up = F.linear(x_TH[tokens], self.gate_up[expert]).chunk(2, -1)
            y = F.linear(F.silu(gate) * up, self.down[expert])
            out_TH.index_add_(0, tokens, y.float() * scores_TC[tokens, places, None])
        out_BSH = out_TH.to(x_BSH.dtype).view(x_BSH.shape)
        return out_BSH if self.shared is None else out_BSH + whole(self.shared(x_BSH), x_BSH)

    __call__ = forward

    @property
    def why_not_fused(self) -> str | None:
        """Why a forward of few tokens is not left to the GPU's kernels; None if it is."""
        return self._why_unknown if self.gate_up.is_cuda else "no GPU"

    @property
    def _why_unknown(self) -> str | None:
        """What of this routing the GPU's kernels do not know: they know the softmax over all experts, no more."""
        config = self.config
        unknown = {
            f"scores by {config.scoring}": config.scoring != "softmax",
            "groups of experts": config.num_groups > 1,
            "a correction of scores": config.corrects,
            "scaled scores": config.scale != 1.0,
            "a router in float32": config.routes_in_float32,
            "a shared expert": self.shared is not None,
        }
        return ", ".join(name for name, there in unknown.items() if there) or None

    def choose(self, x_TH: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's experts, best first, int64 [T, C], and their scores, float32 [T, C]."""
        config = self.config
        logits_TE = self.router(x_TH.float()) if config.routes_in_float32 else self.router(x_TH).float()
        scores_TE = logits_TE.sigmoid() if config.scoring == "sigmoid" else logits_TE.softmax(-1)
        ranked_TE = scores_TE if self.correction_E is None else scores_TE + self.correction_E
        if config.num_groups > 1:
            ranked_TE = self._of_best_groups(ranked_TE)
        experts_TC = ranked_TE.topk(config.num_chosen, dim=-1).indices
        scores_TC = scores_TE.gather(1, experts_TC)
        if config.normalizes:
            scores_TC = scores_TC / (scores_TC.sum(-1, keepdim=True) + 1e-20)
        return experts_TC, scores_TC * config.scale

    def _of_best_groups(self, ranked_TE: Tensor) -> Tensor:
        """-inf for experts of other groups; groups are ranked by their best expert, or the sum of their best two."""
        config = self.config
        grouped = ranked_TE.unflatten(-1, (config.num_groups, -1))
        best_TG = grouped.topk(2, dim=-1).values.sum(-1) if config.corrects else grouped.amax(-1)
        groups = best_TG.topk(config.num_chosen_groups, dim=-1).indices
        left_out = torch.ones_like(best_TG, dtype=torch.bool).scatter(1, groups, False)
        ranked: Tensor = grouped.masked_fill(left_out[..., None], -torch.inf)
        return ranked.flatten(1)
