"""A mixture of experts: a router sends every token through a few of many small MLPs.

Source: Shazeer et al. 2017, arXiv:1701.06538; routing as Mixtral, Qwen3-MoE and DeepSeek publish it.

Legend: B rows, S tokens a row, T = B·S, H hidden, E experts, C experts a token, I intermediate size of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outpace.distributed.group import ALONE, Group
from outpace.errors import ConfigError
from outpace.kernels.packed import PackedWeight
from outpace.kernels.reuse import NO_REUSE, Reuse, among_open
from outpace.models.arch import MixtureConfig
from outpace.models.layers import GatedMLP
from outpace.models.linear import Linear, fuses
from outpace.models.packed import Packing
from outpace.models.parallel import whole
from outpace.models.shares import even_share

if TYPE_CHECKING:
    from outpace.kernels.gpu.routing import Groups


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Weights of all experts in INT4 or FP8."""

    gate_up: PackedWeight
    """[E, 2·I, H], gate's rows first."""
    down: PackedWeight
    """[E, H, I]."""

    @property
    def num_bytes(self) -> int:
        return self.gate_up.num_bytes + self.down.num_bytes


class Mixture(nn.Module):
    """Σ over the chosen experts e of score · down_e(silu(gate_e(x)) · up_e(x)), plus what all tokens go through.

    On a GPU experts that nobody chose are not read, the host never learns which, and so every forward may be part of a
    graph. With `packing` the experts' weights are in `packed` and stay so: kernels unpack them in registers, and a CPU,
    which asks which experts were chosen, one at a time.
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
        packing: Packing | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.config = config
        on_gpu = torch.device(device).type == "cuda"
        router_dtype = torch.float32 if config.routes_in_float32 and not on_gpu else dtype
        self.router = Linear(hidden_size, config.num_experts, dtype=router_dtype, device=device)
        correction = torch.empty(config.num_experts, device=device) if config.corrects else None
        self.register_buffer("correction_E", correction)
        self.columns = even_share(group, config.intermediate_size)
        E, width = config.num_experts, self.columns.size
        self.packed: PackedExperts | None = None
        if packing is None:
            self.gate_up = nn.Parameter(torch.empty((E, 2 * width, hidden_size), dtype=dtype, device=device))
            self.down = nn.Parameter(torch.empty((E, hidden_size, width), dtype=dtype, device=device))
        else:
            gate_up, down = (
                packing.room(E, outputs=rows, inputs=inputs, dtype=dtype, device=device)
                for rows, inputs in ((2 * width, hidden_size), (hidden_size, width))
            )
            self.packed = PackedExperts(gate_up, down)
        self.shared: GatedMLP | None = None
        if config.shared_size:
            self.shared = GatedMLP(hidden_size, config.shared_size, group=group, dtype=dtype, device=device)

    def forward(self, x_BSH: Tensor, num_reused: int = 0) -> Tensor:
        """[B, S, H]; on a GPU, for few tokens, its summands [N, B, S, H] in float32: one for each expert of a token,
        and one for what all tokens go through. `num_reused` is lossy: see `kernels.reuse`."""
        x_TH, reuse = x_BSH.flatten(0, 1), Reuse(num_reused, x_BSH.shape[1])
        if not fuses(x_TH):
            out_BSH = self._one_by_one(x_TH, reuse).to(x_BSH.dtype).view(x_BSH.shape)
            return out_BSH if self.shared is None else out_BSH + whole(self.shared(x_BSH), x_BSH)
        from outpace.kernels.gpu import mixture as gpu

        if gpu.fits(x_TH, self.config.num_chosen):
            return self._summands(x_TH, reuse).view(-1, *x_BSH.shape)
        also_BSH = None if self.shared is None else whole(self.shared(x_BSH), x_BSH)
        return self._by_tiles(x_TH, None if also_BSH is None else also_BSH.flatten(0, 1), reuse).view(x_BSH.shape)

    __call__ = forward

    def expert(self, index: int) -> tuple[Tensor, Tensor]:
        """One expert's gate and up [2·I, H], and its down [H, I], unpacked if need be."""
        if self.packed is None:
            return self.gate_up[index], self.down[index]
        return self.packed.gate_up[index].unpacked(), self.packed.down[index].unpacked()

    def _one_by_one(self, x_TH: Tensor, reuse: Reuse) -> Tensor:
        """The routed experts' sum, float32 [T, H], in PyTorch; asks the host which experts were chosen."""
        experts_TC, scores_TC = self.choose(x_TH, reuse)
        self.chosen_TC = experts_TC
        out_TH = torch.zeros(x_TH.shape, dtype=torch.float32, device=x_TH.device)
        for expert in experts_TC.unique().tolist():
            tokens, places = torch.where(experts_TC == expert)
            gate_up, down = self.expert(expert)
            gate, up = F.linear(x_TH[tokens], gate_up).chunk(2, -1)
            y = F.linear(F.silu(gate) * up, down)
            out_TH.index_add_(0, tokens, y.float() * scores_TC[tokens, places, None])
        return out_TH

    def _by_tiles(self, x_TH: Tensor, also_TH: Tensor | None, reuse: Reuse) -> Tensor:
        """For many tokens on a GPU, or in float32: [T, H], with what is added beside the experts."""
        from outpace.kernels.gpu.tiled_mixture import mixture_tiled

        chosen = self.route(x_TH, reuse)
        self.chosen_TC = chosen[0]
        plain = (self.gate_up, self.down) if self.packed is None else (self.packed.gate_up, self.packed.down)
        out_TH: Tensor = mixture_tiled(x_TH, *chosen, *plain, also_TH=also_TH)
        return out_TH

    def _summands(self, x_TH: Tensor, reuse: Reuse = NO_REUSE) -> Tensor:
        """For few tokens on a GPU: [N, T, H] in float32.

        To choose experts and to group their pairs takes a handful of programs each, that read next to nothing: they
        are launched between the kernels of what all tokens go through, whose weights are fetched meanwhile.
        """
        logits, shared = self.router_logits(x_TH), self.shared
        num = self.config.num_chosen + (shared is not None)
        summands = torch.empty((num, *x_TH.shape), dtype=torch.float32, device=x_TH.device)
        if shared is None:
            self.chosen_TC, scores_TC = self.choose_by(logits, reuse)
            groups = self.grouped(self.chosen_TC)
        else:
            product = shared.product(x_TH)
            self.chosen_TC, scores_TC = self.choose_by(logits, reuse)
            activated = shared.activated(product, x_TH)
            groups = self.grouped(self.chosen_TC, ahead=shared.activates_apart(product))  # by then the choice is over
            shared.into(summands[-1], activated)
        self.routed_into(summands, x_TH, groups, scores_TC)
        return summands

    def grouped(self, experts_TC: Tensor, *, ahead: bool = False) -> Groups:
        """The `Groups` of few tokens' experts on a GPU, read `ahead` as `kernels.gpu.chain` has it."""
        from outpace.kernels.gpu.mixture import groups_plain
        from outpace.kernels.gpu.packed_mixture import groups_packed

        group = groups_plain if self.packed is None else groups_packed
        return group(experts_TC, self.config.num_experts, ahead=ahead)

    def routed_into(self, out_CTH: Tensor, x_TH: Tensor, groups: Groups, scores_TC: Tensor) -> None:
        """For few tokens on a GPU: writes the summands of their experts, in float32, in front of what `out` has room
        for."""
        from outpace.kernels.gpu.mixture import mixture
        from outpace.kernels.gpu.packed_mixture import mixture_packed

        if self.packed is None:
            mixture(x_TH, groups, scores_TC, self.gate_up, self.down, out_CTH)
        else:
            mixture_packed(x_TH, groups, scores_TC, self.packed.gate_up, self.packed.down, out_CTH)

    def route(self, x_TH: Tensor, reuse: Reuse = NO_REUSE) -> tuple[Tensor, Tensor]:
        """`choose` on a GPU, by kernels if they know the routing; experts are int32."""
        return self.choose_by(self.router_logits(x_TH), reuse)

    def router_logits(self, x_TH: Tensor) -> Tensor:
        """The router's logits on a GPU, [T, E], or summands of them, [N, T, E]."""
        from outpace.kernels.gpu import linear

        weight, wide = self.router.weight, self.config.routes_in_float32
        if self.why_not_routed is None and linear.fits(x_TH, weight):
            return linear.multiply(x_TH, weight, self.router.bias, splits=wide, wide=wide)
        return self._logits(x_TH)

    def choose_by(self, logits: Tensor, reuse: Reuse = NO_REUSE) -> tuple[Tensor, Tensor]:
        """Each token's experts, best first, int32 [T, C], and their scores, float32 [T, C], of `router_logits`."""
        from outpace.kernels.gpu import routing

        if self.why_not_routed is not None:
            experts_TC, scores_TC = self._choose_by(logits, reuse)
            return experts_TC.int(), scores_TC
        chosen: tuple[Tensor, Tensor] = routing.choose(logits, self._routing, self.correction_E, reuse=reuse)
        return chosen

    def tile_changes(self, most: int) -> list[int]:
        """Numbers of tokens up to `most`, one for each tile that a GPU's forward of many tokens takes."""
        from outpace.kernels.gpu import mixture as gpu
        from outpace.kernels.gpu.tiled_mixture import tile_of

        bits = 8 * self.gate_up.itemsize if self.packed is None else self.packed.gate_up.bits
        found: dict[Any, int] = {}
        num_tokens = gpu.MAX_TOKENS + 1
        while num_tokens <= most:
            found.setdefault(tile_of(num_tokens * self.config.num_chosen, self.config.num_experts, bits), num_tokens)
            num_tokens += num_tokens // 2
        return list(found.values())

    @cached_property
    def _routing(self) -> Any:
        from outpace.kernels.gpu.routing import Routing

        config = self.config
        return Routing(
            num_chosen=config.num_chosen,
            normalizes=config.normalizes,
            scoring=config.scoring,
            num_groups=config.num_groups,
            num_chosen_groups=config.num_chosen_groups,
            scale=config.scale,
        )

    @cached_property
    def why_not_routed(self) -> str | None:
        """Why a GPU's kernels do not choose experts; None if they do."""
        why: str | None = self._routing.why_not(self.config.num_experts)
        return why

    def choose(self, x_TH: Tensor, reuse: Reuse = NO_REUSE) -> tuple[Tensor, Tensor]:
        """Each token's experts, best first, int64 [T, C], and their scores, float32 [T, C]."""
        return self._choose_by(self._logits(x_TH), reuse)

    def _choose_by(self, logits_TE: Tensor, reuse: Reuse) -> tuple[Tensor, Tensor]:
        config = self.config
        scores_TE = logits_TE.sigmoid() if config.scoring == "sigmoid" else logits_TE.softmax(-1)
        ranked_TE = scores_TE if self.correction_E is None else scores_TE + self.correction_E
        if config.num_groups > 1:
            ranked_TE = self._of_best_groups(ranked_TE)
        ranked_TE = among_open(ranked_TE, config.num_chosen, reuse)
        experts_TC = ranked_TE.topk(config.num_chosen, dim=-1).indices
        scores_TC = scores_TE.gather(1, experts_TC)
        if config.normalizes:
            scores_TC = scores_TC / (scores_TC.sum(-1, keepdim=True) + 1e-20)
        return experts_TC, scores_TC * config.scale

    def _logits(self, x_TH: Tensor) -> Tensor:
        """The router's, float32 [T, E]. On a GPU its weight is of the model's type: products of 16 bits are exact in
        the float32 that they are summed in."""
        if not self.config.routes_in_float32:
            return self.router(x_TH).float()
        if x_TH.is_cuda and x_TH.dtype.itemsize == 2:
            return torch.mm(x_TH, self.router.weight.t(), out_dtype=torch.float32)
        return self.router(x_TH.float())

    def _of_best_groups(self, ranked_TE: Tensor) -> Tensor:
        """-inf for experts of other groups; groups are ranked by their best expert, or the sum of their best two."""
        config = self.config
        grouped = ranked_TE.unflatten(-1, (config.num_groups, -1))
        best_TG = grouped.topk(2, dim=-1).values.sum(-1) if config.corrects else grouped.amax(-1)
        groups = best_TG.topk(config.num_chosen_groups, dim=-1).indices
        left_out = torch.ones_like(best_TG, dtype=torch.bool).scatter(1, groups, False)
        ranked: Tensor = grouped.masked_fill(left_out[..., None], -torch.inf)
        return ranked.flatten(1)


def check_reuse(config: MixtureConfig | None, num: int) -> None:
    """Refuses to reuse so many experts of a drafted token: see `kernels.reuse`.

    Raises:
        ConfigError: there are none, or none would be its own.
    """
    if num and config is None:
        raise ConfigError(f"expert_reuse is {num}, but the model is no mixture of experts: leave it out")
    if config is not None and num >= config.num_chosen:
        raise ConfigError(
            f"expert_reuse is {num}; of the {config.num_chosen} experts of a token at least one must be its own: "
            f"0 … {config.num_chosen - 1}"
        )
