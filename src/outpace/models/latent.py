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
        self.q_norm: RMSNorm | None = None
        if latent.q_rank is not None:
            self.q_norm = RMSNorm(latent.q_rank, NORM_EPS, dtype=dtype, device=device)
        self.sizes = (latent.q_rank or 0, latent.kv_rank, turned_dim)
        """Outputs of `down`: the queries' latent, the keys' and values' latent, the keys' part that is turned."""
        self.down = Linear(in_features, sum(self.sizes), bias=qkv_bias, dtype=dtype, device=device)
        self.q_up = Linear(latent.q_rank or in_features, num_rows, dtype=dtype, device=device)
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
        if isinstance(attend, PagedAttend) and fuses(x_BSH):
            return self._by_kernels(x_BSH, rotary, attend, layer_index)
        query_BSQ, k_BS1E = self._latents(x_BSH, rotary)
        plain_BSNP, turned_BSND = self._queries(x_BSH if self.q_norm is None else self.q_norm(query_BSQ))
        if isinstance(attend, PagedAttend) and attend.plain_pays(self.kv_up):
            attend.store(layer_index, k_BS1E, k_BS1E[..., : self.latent.kv_rank])
            return self.output(self._over_plain(attend, layer_index, plain_BSNP, rotate(turned_BSND, rotary), rotary))
        up_NPR, up_NVR = self._ups()
        absorbed_BSNR = torch.einsum("bsnp,npr->bsnr", plain_BSNP, up_NPR)
        q_BSNE = torch.cat((absorbed_BSNR, rotate(turned_BSND, rotary)), -1) * self.query_scale
        o_BSNR = attend(layer_index, q_BSNE, k_BS1E, k_BS1E[..., : self.latent.kv_rank])
        return self.output(torch.einsum("bsnr,nvr->bsnv", o_BSNR, up_NVR).flatten(2))

    __call__ = forward

    def store(self, x_BSH: Tensor, rotary: Rotary, attend: PagedAttend, layer_index: int) -> None:
        """Latents alone, of tokens whose output nobody asks for."""
        if fuses(x_BSH):
            self._store(x_BSH, rotary, attend, layer_index)
            return
        k_BS1E = self._latents(x_BSH, rotary)[1]
        attend.store(layer_index, k_BS1E, k_BS1E[..., : self.latent.kv_rank])

    def _latents(self, x_BSH: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """The queries' latent, not normed yet, and what `attend` takes for keys."""
        query_BSQ, latent_BSR, shared_BSD = self.down(x_BSH).split_with_sizes(self.sizes, -1)
        halves = self.kv_norm(latent_BSR)[:, :, None], rotate(shared_BSD[:, :, None], rotary)
        return query_BSQ, torch.cat(halves, -1)

    def _store(self, x_BSH: Tensor, rotary: Rotary, attend: PagedAttend, layer_index: int) -> Tensor | None:
        """On a GPU; the queries' latent, if there is one."""
        q_weight = None if self.q_norm is None else self.q_norm.weight
        weights = q_weight, self.kv_norm.weight
        return attend.store_latents(layer_index, self.down.summands(x_BSH), rotary, *weights, NORM_EPS)

    def _by_kernels(self, x_BSH: Tensor, rotary: Rotary, attend: PagedAttend, layer_index: int) -> Tensor:
        query_BSQ = self._store(x_BSH, rotary, attend, layer_index)
        plain_BSNP, turned_BSND = self._queries(x_BSH if query_BSQ is None else query_BSQ)
        if attend.plain_pays(self.kv_up):
            return self.output.summands(self._over_plain(attend, layer_index, plain_BSNP, turned_BSND, rotary))
        up_NPR, up_NVR = self._ups()
        absorbed_BSNR = by_head(plain_BSNP, up_NPR.transpose(1, 2))
        o_BSNR = attend.over_latents(layer_index, absorbed_BSNR, turned_BSND, rotary, self.latent.scale)
        return self.output.summands(by_head(o_BSNR, up_NVR).flatten(2))

    def _over_plain(
        self, attend: PagedAttend, layer_index: int, plain_BSNP: Tensor, turned_BSND: Tensor, rotary: Rotary
    ) -> Tensor:
        """What `output` takes, [B, S, N · V]; the latents are stored already."""
        o_BSNV = attend.over_plain(layer_index, plain_BSNP, turned_BSND, rotary, self.kv_up, self.latent.scale)
        return o_BSNV.flatten(2)

    def _queries(self, x: Tensor) -> list[Tensor]:
        """The part that is not turned, and the part that is."""
        return list(
            self.q_up(x).unflatten(-1, (self.num_heads, -1)).split((self.latent.plain_dim, self.turned_dim), -1)
        )

    def _ups(self) -> list[Tensor]:
        """From the latent to a head's key and to its value."""
        return list(self.kv_up.split((self.latent.plain_dim, self.latent.value_dim), 1))

    @torch.no_grad()
    def bring_halves_together(self) -> None:
        """After loading: turned dimensions that the checkpoint holds in pairs (0 1)(2 3)… become halves, 0 2 … 1 3 …"""
        if not self.latent.interleaved:
            return
        halves = torch.arange(self.turned_dim).view(-1, 2).t().flatten()
        of_heads = torch.arange(self.q_up.out_features).view(self.num_heads, -1)
        of_heads[:, self.latent.plain_dim :] = of_heads[:, self.latent.plain_dim :][:, halves]
        self.q_up.reorder(of_heads.flatten())
        keys = torch.arange(self.down.out_features)
        keys[-self.turned_dim :] = keys[-self.turned_dim :][halves]
        self.down.reorder(keys)


def by_head(x_BSNK: Tensor, weight_NOK: Tensor) -> Tensor:
    """Each head's product, [B, S, N, O], contiguous; on a GPU."""
    from outpace.kernels.gpu.heads import fits, multiply_heads

    x_MNK = x_BSNK.flatten(0, 1)
    if fits(x_MNK):
        out: Tensor = multiply_heads(x_MNK, weight_NOK)
    else:
        out = torch.bmm(x_MNK.transpose(0, 1), weight_NOK.transpose(1, 2)).transpose(0, 1).contiguous()
    return out.view(*x_BSNK.shape[:3], -1)
