"""The EAGLE-3 drafter: fused features of the target, one transformer layer over (embedding, hidden state), a head.

One class computes every dialect; what differs between them is data in `DrafterWiring`. Like the target it never sees a
cache or a mask: speculation passes paged attention, the trainer a causal one.

What a drafter takes from its target (embeddings, sometimes the head) stays the target's: it is reachable here, but is
no parameter of this module, so that training, packing or moving the drafter leaves the target alone.

Where ranks share the target they share the drafter's layer and head too: a draft step reads as many bytes as three or
four layers of the target and, most of all, a head, and dividing those saves more than three collectives take. `fc` runs
once a cycle and stays whole. A drafter that the ranks cannot share evenly is whole on each, but for its head.

Source: Li et al. 2025, arXiv:2503.01840. The entry that joins the embedding of token t + 1 with the features of token t
has rotary position t and predicts token t + 2.

Legend: B rows, S tokens a row, H drafter hidden, F features (A taps · target hidden), V draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from outpace.distributed.group import ALONE
from outpace.errors import ConfigError
from outpace.kernels.attention import PagedAttend
from outpace.models.attention import attention_of
from outpace.models.fresh import DrafterOptions, fresh_wiring
from outpace.models.latent import LatentAttention
from outpace.models.layers import Attend, Embedding, GatedMLP, RMSNorm
from outpace.models.linear import Linear, fuses, pack
from outpace.models.loading import Slot, fill
from outpace.models.parallel import Head, across
from outpace.models.rope import RotaryEmbedding
from outpace.models.shares import kv_share, why_whole
from outpace.models.slots import Slots, attention_slots, head_slots, latent_slots, mlp_slots
from outpace.models.target import Target
from outpace.models.wiring import DrafterWiring


class Drafter(nn.Module):
    """A drafter for one target. Its weights are frozen, and uninitialised until `load`; `create` makes a fresh one.

    Raises:
        ConfigError: it takes the target's embeddings or head, but is of another dtype.
    """

    __call__: Callable[..., tuple[Tensor, Tensor]]
    embed: Embedding
    lm_head: Head
    target_ids_V: Tensor

    def __init__(
        self,
        wiring: DrafterWiring,
        target: Target,
        target_ids_V: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        shape = wiring.shape
        self.wiring = wiring
        self.group = group = target.group if why_whole(shape, target.group.size) is None else ALONE
        place: dict[str, Any] = {"dtype": dtype, "device": device}
        hidden, eps = shape.hidden_size, shape.norm_eps
        num_features = len(wiring.aux_boundaries) * wiring.target_hidden_size
        self.register_buffer("target_ids_V", target_ids_V.to(device), persistent=False)
        self.input_norm = RMSNorm(num_features, eps, **place) if wiring.fusion_norm == "whole" else None
        self.fc_norm = nn.ModuleList(
            RMSNorm(wiring.target_hidden_size, eps, **place)
            for _ in (wiring.aux_boundaries if wiring.fusion_norm == "per_tap" else ())
        )
        self.fc = Linear(num_features, hidden, bias=shape.fc_bias, **place) if wiring.has_fc else None
        self.embed_norm = RMSNorm(hidden, eps, **place)
        self.hidden_norm = RMSNorm(hidden, eps, **place)
        self.rotary = RotaryEmbedding(wiring.rope, shape.head_dim, device=device)
        self.attention = attention_of(shape, 2 * hidden, group=group, **place)
        self.mlp_norm = RMSNorm(hidden, eps, **place)
        self.mlp = GatedMLP(hidden, shape.intermediate_size, bias=shape.mlp_bias, group=group, **place)
        self.norm = RMSNorm(hidden, eps, **place)
        self._borrow(target, dtype)
        if wiring.embedding == "own":
            self.embed = Embedding(wiring.vocab_size, hidden, **place)
        if wiring.lm_head == "own":
            self.lm_head = Head(hidden, wiring.draft_vocab_size, group=target.group, **place)
        self.requires_grad_(False)

    def _borrow(self, target: Target, dtype: torch.dtype) -> None:
        """Puts the target's parts where attribute look-up finds them and `nn.Module`'s registers do not."""
        borrowed = [("embed", self.wiring.embedding), ("lm_head", self.wiring.lm_head)]
        names = [name for name, owner in borrowed if owner == "target"]
        if names and target.embed.weight.dtype != dtype:
            raise ConfigError(
                f"the drafter's dtype is {dtype}, but it uses the target's {' and '.join(names)}, which are "
                f"{target.embed.weight.dtype}; give both models the same dtype"
            )
        self.__dict__.update({name: getattr(target, name) for name in names})

    @classmethod
    def create(
        cls,
        target: Target,
        *,
        draft_ids: Tensor | None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        **options: Unpack[DrafterOptions],
    ) -> Drafter:
        """A fresh drafter: norms are one, products keep the scale of what they are given.

        Args:
            target: what it will draft for.
            draft_ids: target ids that it may propose, ascending, int64 [Vd]; None for all.
            dtype, device: None takes the target's.
            options: sizes, taps and norms; what is left out follows the target.

        Raises:
            ConfigError: ids or sizes are out of range. DrafterError: a tap is.
        """
        wiring = fresh_wiring(target.config, draft_ids, options)
        ids_V = torch.arange(wiring.vocab_size) if draft_ids is None else draft_ids
        weight = target.embed.weight
        drafter = cls(wiring, target, ids_V, dtype=dtype or weight.dtype, device=device or weight.device)
        drafter._initialise()
        return drafter

    @torch.no_grad()
    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5)

    def fuse(self, features_BSF: Tensor) -> Tensor:
        """Features of the target's taps, side by side in `wiring.aux_boundaries` order → hidden_BSH."""
        if self.input_norm is not None:
            features_BSF = self.input_norm(features_BSF)
        if self.fc_norm:
            taps = features_BSF.chunk(len(self.fc_norm), -1)
            features_BSF = torch.cat([norm(tap) for norm, tap in zip(self.fc_norm, taps, strict=True)], -1)
        return features_BSF if self.fc is None else self.fc(features_BSF)

    def forward(
        self, tokens_BS: Tensor, hidden_BSH: Tensor, positions_BS: Tensor, attend: Attend, ahead: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Runs S entries of B rows.

        Args:
            tokens_BS: int64 target ids.
            hidden_BSH: for each, what comes before it: a fused feature, or `next_hidden` of the step before.
            positions_BS: int64 rotary positions.
            attend: called with layer 0.
            ahead: added to the positions; what falls below 0 becomes 0.

        Returns:
            next_hidden_BSH, which the next draft step is fed, and out_BSH, which `logits` takes.
        """
        both_BSH = self._inputs(tokens_BS, hidden_BSH)
        rotary = self.rotary(positions_BS, hidden_BSH.dtype, ahead)
        residual_BSH = both_BSH.chunk(2, -1)[1] if self.wiring.norm_before_residual else hidden_BSH
        attended_BSH = across(self.group, self.attention(both_BSH, rotary, attend, 0), hidden_BSH)
        x_BSH, normed_BSH = self.mlp_norm.add(residual_BSH, attended_BSH)
        x_BSH, out_BSH = self.norm.add(x_BSH, across(self.group, self.mlp(normed_BSH), x_BSH))
        return (out_BSH if self.wiring.norm_output else x_BSH), out_BSH

    def store(
        self, tokens_BS: Tensor, hidden_BSH: Tensor, positions_BS: Tensor, attend: PagedAttend, ahead: int = 0
    ) -> None:
        """What `forward` keeps of S entries of B rows, and nothing else: one layer's keys hang on its inputs alone."""
        rotary = self.rotary(positions_BS, hidden_BSH.dtype, ahead)
        self.attention.store(self._inputs(tokens_BS, hidden_BSH), rotary, attend, 0)

    def _inputs(self, tokens_BS: Tensor, hidden_BSH: Tensor) -> Tensor:
        """Normed embedding and normed hidden state side by side, [B, S, 2H]."""
        if fuses(hidden_BSH):
            from outpace.kernels.gpu.norm import embed_and_norm

            weights = self.embed.weight, self.embed_norm.weight, self.hidden_norm.weight
            return embed_and_norm(tokens_BS, hidden_BSH, *weights, self.embed_norm.eps)
        return torch.cat((self.embed_norm(self.embed(tokens_BS)), self.hidden_norm(hidden_BSH)), -1)

    def logits(self, out: Tensor) -> Tensor:
        """Outputs [..., H] → logits [..., V] over the draft vocabulary; `target_ids_V` says which tokens they are."""
        return self.lm_head(out)

    @property
    def num_cached_heads(self) -> int:
        """Heads of the keys and values that this rank caches."""
        latent = self.wiring.shape.latent is not None
        return 1 if latent else kv_share(self.group, self.wiring.num_kv_heads).size

    def pack(self) -> bool:
        """Readies the loaded drafter for inference, for good; see `linear.pack`. Its target's parts are left alone."""
        return pack(self)

    def load(self, tensors: Mapping[str, Tensor], taken: Callable[[], None] | None = None) -> None:
        """Copies a checkpoint in, by its names under `wiring.prefix`, one tensor at a time; calls `taken` after each.

        Raises:
            CheckpointError: tensors are missing, unknown, of another shape or not of a float type.
        """
        fill(self.slots(self.wiring.prefix), tensors, taken=taken)
        if isinstance(self.attention, LatentAttention):
            self.attention.bring_halves_together()

    def slots(self, prefix: str) -> Slots:
        """Where each tensor of a checkpoint goes, whose layer is called `prefix`; the vocabulary maps aside."""
        layer: Slots = {
            "input_layernorm.weight": Slot(self.embed_norm.weight),
            "hidden_norm.weight": Slot(self.hidden_norm.weight),
            "post_attention_layernorm.weight": Slot(self.mlp_norm.weight),
        }
        attention = self.attention
        layer |= latent_slots(attention) if isinstance(attention, LatentAttention) else attention_slots(attention)
        layer |= mlp_slots(self.mlp)
        slots: Slots = {"norm.weight": Slot(self.norm.weight)}
        slots |= {f"{prefix}{name}": slot for name, slot in layer.items()}
        if self.fc is not None:
            slots["fc.weight"] = Slot(self.fc.weight)
            slots |= {} if self.fc.bias is None else {"fc.bias": Slot(self.fc.bias)}
        if self.input_norm is not None:
            slots["input_norm.weight"] = Slot(self.input_norm.weight)
        slots |= {f"fc_norm.{name}": Slot(parameter) for name, parameter in self.fc_norm.named_parameters()}
        slots |= {"embed_tokens.weight": Slot(self.embed.weight)} if self.wiring.embedding == "own" else {}
        return slots | (head_slots(self.lm_head, "lm_head") if self.wiring.lm_head == "own" else {})
