"""Multi-head latent attention, absorbed: queries are brought into the latent's space, so that keys and values of all
heads are one cached vector a token, and attention is that of one KV head.

    score = q_plain · (W_k latent) + q_turned · k_turned = (W_kᵀ q_plain) · latent + q_turned · k_turned
    out   = W_v Σ weight · latent

Source: DeepSeek-V2, arXiv:2405.04434, section 2.1 and appendix C.

Legend: B rows, S tokens a row, H hidden, N heads, R rank of the latent; D turned, P plain and V value dimensions of a
head, E = R + D.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outpace.distributed.group import ALONE, Group
from outpace.kernels.attention import PagedAttend
from outpace.models.arch import LatentConfig
from outpace.models.layers import Attend, RMSNorm
from outpace.models.linear import Linear, SummandLinear, fuses
from outpace.models.parallel import whole
from outpace.models.rope import Rotary, rotate
from outpace.models.shares import even_share

NORM_EPS = 1e-6
"""Of the latents' norms, whatever the config says of the others."""


class LatentAttention(nn.Module):
    """One layer's, or a rank's share of its heads; the latents are whole on every rank.

    Its input may be wider than the model (`in_features`), as EAGLE-3's is.

    `attend` sees one KV head: its key is the latent and the turned part, its value the latent.
    """

    def __init__(
        self,
        in_features: int,
        hidden_size: int,
        latent: LatentConfig,
        *,
        num_heads: int,
        turned_dim: int,
        qkv_bias: bool = False,
        output_bias: bool = False,
        group: Group = ALONE,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.heads = even_share(group, num_heads)
        self.latent, self.num_heads, self.turned_dim = latent, self.heads.size, turned_dim
        num_rows = self.num_heads * (latent.plain_dim + turned_dim)
        self.q_down: Linear | None = None
        self.q_norm: RMSNorm | None = None
        if latent.q_rank is not None:
            self.q_down = Linear(in_features, latent.q_rank, bias=qkv_bias, dtype=dtype, device=device)
            self.q_norm = RMSNorm(latent.q_rank, NORM_EPS, dtype=dtype, device=device)
        self.q_up = Linear(latent.q_rank or in_features, num_rows, dtype=dtype, device=device)
        self.kv_down = Linear(in_features, latent.kv_rank + turned_dim, bias=qkv_bias, dtype=dtype, device=device)
        self.kv_norm = RMSNorm(latent.kv_rank, NORM_EPS, dtype=dtype, device=device)
        shape = (self.num_heads, latent.plain_dim + latent.value_dim, latent.kv_rank)
        self.kv_up = nn.Parameter(torch.empty(shape, dtype=dtype, device=device))
        self.output = SummandLinear(
            num_heads * latent.value_dim,
            hidden_size,
            group=group,
            bias=output_bias,
            dtype=dtype,
            device=device,
        )
        self.query_scale = latent.scale * (latent.kv_rank + turned_dim) ** 0.5
        """`attend` scales by key_dim ** -0.5; this makes it the model's own scale."""

    def forward(self, x_BSH: Tensor, rotary: Rotary, attend: Attend, layer_index: int) -> Tensor:
        latent, D = self.latent, self.turned_dim
        q = x_BSH
        if self.q_down is not None and self.q_norm is not None:
            q = self.q_norm(whole(self.q_down.summands(q), x_BSH))
        q_BSNE = self.q_up(q).unflatten(-1, (self.num_heads, -1))
        plain_BSNP, turned_BSND = q_BSNE.split_with_sizes((latent.plain_dim, D), -1)
        down_BSE = whole(self.kv_down.summands(x_BSH), x_BSH)
        up_NPR, up_NVR = self.kv_up.split_with_sizes((latent.plain_dim, latent.value_dim), 1)
        absorbed_BSNR = torch.einsum("bsnp,npr->bsnr", plain_BSNP, up_NPR)
        if isinstance(attend, PagedAttend) and fuses(x_BSH):
            norm = (self.kv_norm.weight, self.kv_norm.eps)
            o_BSNR = attend.from_latent(
                layer_index, absorbed_BSNR.contiguous(), turned_BSND, down_BSE, rotary, norm, latent.scale
            )
            return self.output.summands(torch.einsum("bsnr,nvr->bsnv", o_BSNR, up_NVR).flatten(2))
        latent_BSR, shared_BSD = down_BSE.split_with_sizes((latent.kv_rank, D), -1)
        latent_BSR = self.kv_norm(latent_BSR)
        q_BSNE = torch.cat((absorbed_BSNR, rotate(turned_BSND, rotary)), -1) * self.query_scale
        k_BS1E = torch.cat((latent_BSR[:, :, None], rotate(shared_BSD[:, :, None], rotary)), -1)
        o_BSNR = attend(layer_index, q_BSNE, k_BS1E, k_BS1E[..., : latent.kv_rank])
        return self.output(torch.einsum("bsnr,nvr->bsnv", o_BSNR, up_NVR).flatten(2))

    __call__ = forward

    @torch.no_grad()
    def bring_halves_together(self) -> None:
        """After loading: turned dimensions that the checkpoint holds in pairs (0 1)(2 3)… become halves, 0 2 … 1 3 …"""
        if not self.latent.interleaved:
            return
        order = torch.arange(self.turned_dim).view(-1, 2).t().flatten()
        queries = self.q_up.weight.unflatten(0, (self.num_heads, -1))[:, self.latent.plain_dim :]
        queries.copy_(queries[:, order].clone())
        keys = self.kv_down.weight[self.latent.kv_rank :]
        keys.copy_(keys[order].clone())
        if self.kv_down.bias is not None:
            bias = self.kv_down.bias[self.latent.kv_rank :]
            bias.copy_(bias[order].clone())
