"""Where each tensor of a checkpoint goes, under the names that transformers' checkpoints have."""

from __future__ import annotations

import torch

from outpace.models.latent import LatentAttention
from outpace.models.layers import Attention, GatedMLP
from outpace.models.linear import Linear, SummandLinear
from outpace.models.loading import Slot
from outpace.models.mixture import Mixture
from outpace.models.packed import PackedSlot
from outpace.models.parallel import Head
from outpace.models.shares import Share

Slots = dict[str, Slot | PackedSlot]

PRODUCTS = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.down": ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
    "attention.q_up": ("self_attn.q_b_proj",),
    "attention.output": ("self_attn.o_proj",),
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
    "mlp.shared.gate_up": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    "mlp.shared.down": ("mlp.shared_experts.down_proj",),
}
"""Products of a layer that may stay packed, and what they are made of."""

EXPERT_NAMES = {
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
    "qwen3_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "deepseek_v2": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "deepseek_v3": ("mlp", "gate_proj", "up_proj", "down_proj"),
}
"""What a mixture is called, and an expert's gate, up and down."""


def attention_slots(attention: Attention) -> Slots:
    """The slots of an attention block (`self_attn.…`); drafters have them too."""
    D, kv_heads = attention.head_dim, attention.kv_heads.times(attention.head_dim)
    slots = _rows(
        attention.qkv,
        {
            "self_attn.q_proj": attention.heads.times(D),
            "self_attn.k_proj": kv_heads,
            "self_attn.v_proj": kv_heads,
        },
    )
    slots |= _columns(attention.output, "self_attn.o_proj")
    if attention.q_norm is not None and attention.k_norm is not None:
        slots["self_attn.q_norm.weight"] = Slot(attention.q_norm.weight)
        slots["self_attn.k_norm.weight"] = Slot(attention.k_norm.weight)
    return slots


def latent_slots(attention: LatentAttention) -> Slots:
    """The slots of latent attention (`self_attn.…`)."""
    slots = _columns(attention.output, "self_attn.o_proj")
    slots["self_attn.kv_a_layernorm.weight"] = Slot(attention.kv_norm.weight)
    q_rank, kv_rank, turned = attention.sizes
    downs, queries = {"self_attn.kv_a_proj_with_mqa": _all(kv_rank + turned)}, "q_proj"
    if attention.q_norm is not None:
        downs = {"self_attn.q_a_proj": _all(q_rank)} | downs
        slots["self_attn.q_a_layernorm.weight"] = Slot(attention.q_norm.weight)
        queries = "q_b_proj"
    slots |= _rows(attention.down, downs)
    rows_a_head = attention.q_up.out_features // attention.num_heads
    slots |= _rows(attention.q_up, {f"self_attn.{queries}": attention.heads.times(rows_a_head)})
    kv_up = attention.kv_up
    slots["self_attn.kv_b_proj.weight"] = Slot(kv_up.flatten(0, 1), attention.heads.times(kv_up.shape[1]))
    return slots


def mlp_slots(mlp: GatedMLP, name: str = "mlp") -> Slots:
    """The slots of a gated MLP (`mlp.…`)."""
    share = mlp.down.columns
    slots = _rows(mlp.gate_up, {f"{name}.gate_proj": share, f"{name}.up_proj": share})
    return slots | _columns(mlp.down, f"{name}.down_proj")


def expert_prefix(architecture: str) -> str:
    """How the names of a layer's experts begin, where an architecture has them."""
    return f"{EXPERT_NAMES[architecture][0]}.experts." if architecture in EXPERT_NAMES else ""


def mixture_slots(mixture: Mixture, architecture: str) -> Slots:
    """The slots of a mixture of experts."""
    block, gate, up, down = EXPERT_NAMES[architecture]
    slots: Slots = {**_whole(mixture.router, f"{block}.gate")}
    if mixture.correction_E is not None:
        slots[f"{block}.gate.e_score_correction_bias"] = Slot(mixture.correction_E)
    for expert in range(mixture.config.num_experts):
        name, columns = f"{block}.experts.{expert}", mixture.columns
        if mixture.packed is not None:
            gate_up, down_proj = mixture.packed.gate_up[expert], mixture.packed.down[expert]
            slots[f"{name}.{gate}.weight"] = PackedSlot(gate_up.rows(0, columns.size), columns, 0)
            slots[f"{name}.{up}.weight"] = PackedSlot(gate_up.rows(columns.size, columns.size), columns, 0)
            slots[f"{name}.{down}.weight"] = PackedSlot(down_proj, columns, 1)
            continue
        halves = mixture.gate_up[expert].chunk(2)
        slots[f"{name}.{gate}.weight"] = Slot(halves[0], columns)
        slots[f"{name}.{up}.weight"] = Slot(halves[1], columns)
        slots[f"{name}.{down}.weight"] = Slot(mixture.down[expert], columns, dim=1)
    return slots | ({} if mixture.shared is None else mlp_slots(mixture.shared, f"{block}.shared_experts"))


def head_slots(head: Head, name: str) -> Slots:
    """The slot of a vocabulary head, whose rows may be filled up behind its share."""
    return {f"{name}.weight": Slot(head.weight[: head.share.size], head.share)}


def _all(size: int) -> Share:
    return Share(0, size, size)


def _whole(linear: Linear, name: str) -> Slots:
    slots: Slots = {f"{name}.weight": Slot(linear.weight)}
    if linear.bias is not None:
        slots[f"{name}.bias"] = Slot(linear.bias)
    return slots


def _rows(linear: Linear, shares: dict[str, Share]) -> Slots:
    """Row ranges of one product, in their order: name → share of that tensor's rows."""
    sizes = [share.size for share in shares.values()]
    slots: Slots = {}
    if linear.held is None:
        parts = linear.weight.split_with_sizes(sizes)
        slots |= {f"{n}.weight": Slot(part, share) for (n, share), part in zip(shares.items(), parts, strict=True)}
    else:
        start = 0
        for name, share in shares.items():
            slots[f"{name}.weight"] = PackedSlot(linear.held.rows(start, share.size), share, 0)
            start += share.size
    if linear.bias is not None:
        biases = linear.bias.split_with_sizes(sizes)
        slots |= {f"{n}.bias": Slot(part, share) for (n, share), part in zip(shares.items(), biases, strict=True)}
    return slots


def _columns(linear: SummandLinear, name: str) -> Slots:
    """A product that is cut along its inputs; other ranks than the first know its bias, and take none of it."""
    slots: Slots = {}
    if linear.held is None:
        slots[f"{name}.weight"] = Slot(linear.weight, linear.columns, dim=1)
    else:
        slots[f"{name}.weight"] = PackedSlot(linear.held, linear.columns, 1)
    if linear.bias is not None:
        slots[f"{name}.bias"] = Slot(linear.bias)
    elif linear.bias_elsewhere:
        slots[f"{name}.bias"] = Slot(torch.empty(0), Share(0, 0, linear.out_features))
    return slots
