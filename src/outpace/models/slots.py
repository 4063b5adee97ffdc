"""Where each tensor of a checkpoint goes, under the names that transformers' checkpoints have."""

from __future__ import annotations

from outpace.models.latent import LatentAttention
from outpace.models.layers import Attention, GatedMLP, Linear
from outpace.models.loading import Slot
from outpace.models.mixture import Mixture

EXPERT_NAMES = {
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
    "qwen3_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "deepseek_v2": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "deepseek_v3": ("mlp", "gate_proj", "up_proj", "down_proj"),
}
"""What a mixture is called, and an expert's gate, up and down."""


def attention_slots(attention: Attention) -> dict[str, Slot]:
    """The slots of an attention block (`self_attn.…`); drafters have them too."""
    num_rows = [n * attention.head_dim for n in (attention.num_heads, attention.num_kv_heads, attention.num_kv_heads)]
    slots = _parts(attention.qkv, {f"self_attn.{name}_proj": n for name, n in zip("qkv", num_rows, strict=True)})
    slots |= _parts(attention.output, {"self_attn.o_proj": attention.output.out_features})
    if attention.q_norm is not None and attention.k_norm is not None:
        slots["self_attn.q_norm.weight"] = attention.q_norm.weight
        slots["self_attn.k_norm.weight"] = attention.k_norm.weight
    return slots


def latent_slots(attention: LatentAttention) -> dict[str, Slot]:
    """The slots of latent attention (`self_attn.…`)."""
    products = {"kv_a_proj_with_mqa": attention.kv_down, "o_proj": attention.output}
    norms = {"kv_a_layernorm": attention.kv_norm}
    if attention.q_down is not None and attention.q_norm is not None:
        products |= {"q_a_proj": attention.q_down, "q_b_proj": attention.q_up}
        norms["q_a_layernorm"] = attention.q_norm
    else:
        products["q_proj"] = attention.q_up
    slots: dict[str, Slot] = {f"self_attn.{name}.weight": norm.weight for name, norm in norms.items()}
    slots["self_attn.kv_b_proj.weight"] = attention.kv_up.flatten(0, 1)
    for name, product in products.items():
        slots |= _parts(product, {f"self_attn.{name}": product.out_features})
    return slots


def mlp_slots(mlp: GatedMLP, name: str = "mlp") -> dict[str, Slot]:
    """The slots of a gated MLP (`mlp.…`)."""
    width = mlp.down.in_features
    slots = _parts(mlp.gate_up, {f"{name}.gate_proj": width, f"{name}.up_proj": width})
    return slots | _parts(mlp.down, {f"{name}.down_proj": mlp.down.out_features})


def mixture_slots(mixture: Mixture, architecture: str) -> dict[str, Slot]:
    """The slots of a mixture of experts."""
    block, gate, up, down = EXPERT_NAMES[architecture]
    slots: dict[str, Slot] = {f"{block}.gate.weight": mixture.router.weight}
    if mixture.correction_E is not None:
        slots[f"{block}.gate.e_score_correction_bias"] = mixture.correction_E
    for expert in range(mixture.config.num_experts):
        halves = mixture.gate_up[expert].chunk(2)
        for name, slot in ((gate, halves[0]), (up, halves[1]), (down, mixture.down[expert])):
            slots[f"{block}.experts.{expert}.{name}.weight"] = slot
    return slots | ({} if mixture.shared is None else mlp_slots(mixture.shared, f"{block}.shared_experts"))


def _parts(linear: Linear, num_rows: dict[str, int]) -> dict[str, Slot]:
    """Row ranges of one product: name → number of rows, in their order."""
    sizes = list(num_rows.values())
    slots = dict(zip((f"{name}.weight" for name in num_rows), linear.weight.split_with_sizes(sizes), strict=True))
    if linear.bias is not None:
        slots |= zip((f"{name}.bias" for name in num_rows), linear.bias.split_with_sizes(sizes), strict=True)
    return slots
