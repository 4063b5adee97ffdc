"""The target: a decoder-only transformer whose forward is a plain function of tokens, positions and `attend`.

One class serves every architecture: Llama, Mistral, Qwen, their mixtures of experts and DeepSeek differ only in what
`TargetConfig` says. It never sees a cache or a mask, so prefill, plain decoding and verify are the same call, and it
gives up the hidden states that an EAGLE-3 drafter taps on the way.

Legend: B rows, S tokens a row, H hidden, F tapped features (A taps · H), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from outpace.distributed.group import ALONE, Group, Unsummed
from outpace.models.arch import TargetConfig
from outpace.models.attention import attention_of
from outpace.models.latent import LatentAttention
from outpace.models.layers import Attend, Attention, Embedding, GatedMLP, RMSNorm
from outpace.models.linear import Linear, pack
from outpace.models.loading import Slot, fill
from outpace.models.mixture import Mixture
from outpace.models.packed import Packing
from outpace.models.parallel import Head, across
from outpace.models.rope import Rotary, RotaryEmbedding
from outpace.models.shares import check_target, kv_share
from outpace.models.slots import Slots, attention_slots, head_slots, latent_slots, mixture_slots, mlp_slots


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(
        self,
        config: TargetConfig,
        index: int,
        *,
        group: Group,
        dtype: torch.dtype,
        device: torch.device | str,
        packing: Packing | None = None,
    ) -> None:
        super().__init__()
        self.group = group
        place: dict[str, Any] = {"dtype": dtype, "device": device}
        hidden, eps = config.hidden_size, config.norm_eps
        self.input_norm = RMSNorm(hidden, eps, **place)
        self.attention = attention_of(config, hidden, group=group, **place)
        self.mlp_norm = RMSNorm(hidden, eps, **place)
        self.mlp: GatedMLP | Mixture
        if config.mixture is not None and config.mixture.layers[index]:
            kept = packing if packing is not None and index in packing.layers else None
            self.mlp = Mixture(hidden, config.mixture, group=group, packing=kept, **place)
        else:
            self.mlp = GatedMLP(hidden, config.intermediate_size, bias=config.mlp_bias, group=group, **place)

        for where, path in () if packing is None else sorted(packing.products):
            if where == index:
                product = self.get_submodule(path)
                assert packing is not None and isinstance(product, Linear)
                product.hold(packing.room(outputs=product.out_features, inputs=product.in_features, **place))

    def forward(
        self,
        x_BSH: Tensor,
        delta_BSH: Tensor | Unsummed | None,
        rotary: Rotary,
        attend: Attend,
        index: int,
        expert_reuse: int,
    ) -> tuple[Tensor, Tensor, Tensor | Unsummed]:
        """Sums are left to the norm behind them, which reads both parts anyway.

        Args:
            x_BSH, delta_BSH: two parts of the input; None is 0.

        Returns:
            input_BSH, whole, and the two parts of the output.
        """
        input_BSH, normed_BSH = self.input_norm.add(x_BSH, delta_BSH)
        attended_BSH = across(self.group, self.attention(normed_BSH, rotary, attend, index), input_BSH)
        x_BSH, normed_BSH = self.mlp_norm.add(input_BSH, attended_BSH)
        mlp = self.mlp
        mixed = mlp(normed_BSH, expert_reuse) if isinstance(mlp, Mixture) else mlp(normed_BSH)
        return input_BSH, x_BSH, across(self.group, mixed, x_BSH)

    __call__ = forward


class Target(nn.Module):
    """A target model, or one rank's share of it. Its weights are frozen, and uninitialised until `load`.

    `packing` says what of it stays packed in memory; None is nothing.

    Raises:
        ConfigError: the ranks of `group` cannot share it.
    """

    def __init__(
        self,
        config: TargetConfig,
        *,
        group: Group = ALONE,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        packing: Packing | None = None,
    ) -> None:
        super().__init__()
        check_target(config, group.size)
        self.config, self.group, self.packing = config, group, packing
        place: dict[str, Any] = {"dtype": dtype, "device": device}
        self.embed = Embedding(config.vocab_size, config.hidden_size, **place)
        self.rotary = RotaryEmbedding(config.rope, config.head_dim, device=device)
        self.layers = nn.ModuleList(
            Layer(config, i, group=group, packing=packing, **place) for i in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, **place)
        self.lm_head = Head(config.hidden_size, config.vocab_size, group=group, **place)
        if config.tie_embeddings:
            self.lm_head.tie(self.embed)
        self.requires_grad_(False)
        self.rehearsing = False
        """What is computed is worth nothing: it is to launch every kernel, for which one of several like layers will
        do."""
        layers = zip(self.layers, config.windows, strict=True)
        self._telling = _telling([(window, *_kind(layer)) for layer, window in layers])

    def forward(
        self,
        tokens_BS: Tensor,
        positions_BS: Tensor,
        attend: Attend,
        taps: tuple[int, ...] = (),
        expert_reuse: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """Runs S tokens of B rows.

        Args:
            tokens_BS: int64 ids.
            positions_BS: int64 rotary positions.
            attend: attention over the past and these tokens.
            taps: boundaries b, in 0 … num_layers: the input of layer b (num_layers: the last layer's output).
            expert_reuse: LOSSY, for verifying drafts: see `kernels.reuse`. 0 is exact.

        Returns:
            hidden_BSH after the final norm, which `logits` takes, and features_BSF, the taps side by side in the
            order given (transformers' `hidden_states[b]` for b < num_layers); None without taps.
        """
        x_BSH = self.embed(tokens_BS)
        rotary = self.rotary(positions_BS, x_BSH.dtype)
        inputs: list[Tensor] = []
        delta_BSH: Tensor | Unsummed | None = None
        for index, layer in enumerate(self.layers):
            input_BSH = x_BSH
            if self._runs(index):
                input_BSH, x_BSH, delta_BSH = layer(x_BSH, delta_BSH, rotary, attend, index, expert_reuse)
            inputs.append(input_BSH)
        x_BSH, hidden_BSH = self.norm.add(x_BSH, delta_BSH)
        inputs.append(x_BSH)
        features_BSF = torch.cat([inputs[boundary] for boundary in taps], -1) if taps else None
        return hidden_BSH, features_BSF

    def logits(self, hidden: Tensor) -> Tensor:
        """Final hidden states [..., H] → logits [..., V], in the model's dtype, on every rank."""
        return self.lm_head(hidden)

    def experts_touched(self) -> Tensor | None:
        """How many experts the last forward touched, over all layers: int64, one number; None if there are none.

        Tokens that only fill a batch up count, since their experts are read too.
        """
        mlps = [layer.mlp for index, layer in enumerate(self.layers) if self._runs(index)]
        chosen = [mlp.chosen_TC for mlp in mlps if isinstance(mlp, Mixture)]
        mixture = self.config.mixture
        if mixture is None or not chosen:
            return None
        experts_LP = torch.stack(chosen).flatten(1).long()
        marks_LE = experts_LP.new_zeros(len(chosen), mixture.num_experts).scatter_(1, experts_LP, 1)
        return marks_LE.sum()

    def _runs(self, index: int) -> bool:
        """Whether a forward runs this layer, as all but rehearsals do."""
        return not self.rehearsing or index in self._telling

    @property
    def num_cached_heads(self) -> int:
        """Heads of the keys and values that this rank caches; a latent every rank caches whole."""
        return 1 if self.config.latent is not None else kv_share(self.group, self.config.num_kv_heads).size

    def pack(self) -> bool:
        """Readies the loaded model for inference, for good; see `linear.pack`."""
        return pack(self)

    def load(self, tensors: Mapping[str, Tensor], taken: Callable[[], None] | None = None) -> None:
        """Copies a checkpoint in, by its transformers names, one tensor at a time; calls `taken` after each.

        Raises:
            CheckpointError: tensors are missing, unknown, of another shape or not of a float type.
        """
        optional = ["lm_head.weight"] if self.config.tie_embeddings else []
        optional += [name for name in tensors if name.startswith(self._unused)]
        fill(self.slots(), tensors, optional=optional, taken=taken)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            if isinstance(layer.attention, LatentAttention):
                layer.attention.bring_halves_together()

    @property
    def _unused(self) -> tuple[str, ...]:
        """How the names of layers begin that predict further tokens and are no part of the target."""
        first = self.config.num_layers
        return tuple(f"model.layers.{index}." for index in range(first, first + self.config.num_further_layers))

    def slots(self) -> Slots:
        """Where each tensor of a transformers checkpoint goes."""
        slots: Slots = {}
        slots |= {"model.embed_tokens.weight": Slot(self.embed.weight), "model.norm.weight": Slot(self.norm.weight)}
        if not self.config.tie_embeddings:
            slots |= head_slots(self.lm_head, "lm_head")
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            named = layer_slots(layer, self.config.architecture)
            slots |= {f"model.layers.{index}.{name}": slot for name, slot in named.items()}
        return slots


def _telling(kinds: Sequence[Hashable]) -> frozenset[int]:
    """Of layers of these kinds as many as launch every kernel: the first of each kind, and the one behind it, whose
    first norm reads what such a layer leaves."""
    firsts = {kind: index for index, kind in reversed(list(enumerate(kinds)))}
    return frozenset(index for first in firsts.values() for index in (first, first + 1) if index < len(kinds))


def _kind(layer: nn.Module) -> tuple[Hashable, ...]:
    """What its kernels depend on: modules, and how each holds its weights."""
    held = (module.held for module in layer.modules() if isinstance(module, Linear))
    return (
        tuple((name, type(module)) for name, module in layer.named_modules()),
        tuple((name, weight.shape, weight.dtype) for name, weight in layer.named_parameters()),
        tuple(type(weight) for weight in held),
    )


def layer_slots(layer: Layer, architecture: str) -> Slots:
    """The slots of one layer, without their prefix."""
    slots: Slots = {
        "input_layernorm.weight": Slot(layer.input_norm.weight),
        "post_attention_layernorm.weight": Slot(layer.mlp_norm.weight),
    }
    attention, mlp = layer.attention, layer.mlp
    slots |= attention_slots(attention) if isinstance(attention, Attention) else latent_slots(attention)
    return slots | (mlp_slots(mlp) if isinstance(mlp, GatedMLP) else mixture_slots(mlp, architecture))
