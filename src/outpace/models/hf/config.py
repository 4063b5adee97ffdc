"""config.json of a transformers checkpoint → `TargetConfig`, for Llama, Mistral, Qwen2 / 2.5, Qwen3 and mixtures.

The reference for a model type is transformers' class of that name: a field that this class does not read changes
nothing and is only noted, a field that would change the maths and is not implemented here is refused. Code that a
checkpoint brings (`auto_map`) is never run.
"""

from __future__ import annotations

from pathlib import Path

from outpace.errors import CheckpointError
from outpace.models.arch import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    MAX_WIDTH,
    TargetConfig,
)
from outpace.models.ends import Ends, resolve_ends
from outpace.models.fields import Fields, read_json
from outpace.models.hf.deepseek import DEEPSEEK, MUST_BE, read_latent, turned_dim
from outpace.models.hf.mixture import MIXTURES, read_mixture
from outpace.models.hf.quantised import read_scheme
from outpace.models.hf.rope import CONFIG_FIELDS, read_rope
from outpace.models.hf.wrapped import unwrapped

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}
SAME_AS = {"kimi_k2": "deepseek_v3"}
"""Names under which others publish an architecture."""

_ABSENT = (None, False, 0, 1)
_MUST_BE: dict[str, tuple[object, ...]] = {
    "hidden_act": (None, "silu", "swish"),
    "is_encoder_decoder": (None, False),
    "is_causal": (None, True),
    "partial_rotary_factor": (None, 1),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "logit_scale": _ABSENT,
    "logits_scaling": _ABSENT,
    "embedding_multiplier": _ABSENT,
    "residual_multiplier": _ABSENT,
    "attention_multiplier": _ABSENT,
}
"""Fields that change the maths, and the values that do not."""
_OTHER_EXPERTS: dict[str, tuple[object, ...]] = {
    "num_local_experts": _ABSENT,
    "num_experts": _ABSENT,
    "n_routed_experts": _ABSENT,
}
"""The same for how other architectures say that they are a mixture."""

_HARMLESS = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attn_implementation",
        "bos_token_id",
        "_attn_implementation_autoset",
        "dtype",
        "ep_size",
        "head_dim",
        "initializer_range",
        "output_router_logits",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "pad_token_id",
        "pretraining_tp",
        "torch_dtype",
        "transformers_version",
        "aux_loss_alpha",
        "compression_config",
        "quantization_config",
        "qk_head_dim",
        "seq_aux",
        "use_cache",
    }
)
"""Fields about training, storing or running a model, not worth a note."""


def read_target(directory: Path, *, tokenizer_eos: int | None = None) -> tuple[TargetConfig, tuple[str, ...]]:
    """Reads config.json, and generation_config.json for the tokens that end an answer.

    Args:
        directory: of the checkpoint.
        tokenizer_eos: the token that its tokenizer calls the end; it ends an answer too.

    Returns:
        The configuration, and sentences: what ends an answer, and each thing that was not used.

    Raises:
        CheckpointError: a file is unreadable, the architecture is not served, or a field is missing or not served.
    """
    whole = read_json(directory / "config.json")
    config, wrapper = unwrapped(whole, str(directory / "config.json"))
    if whole.get("auto_map") is not None:
        config = config | {"auto_map": whole["auto_map"]}
    generation_path = directory / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}
    fields = Fields(config, str(directory / "config.json"))
    ends = _ends(fields, Fields(generation, str(generation_path)), tokenizer_eos)
    target = _target(fields, ends.token_ids)
    scheme = read_scheme(config, fields.origin)
    said = [] if scheme is None else [f"quantised: {scheme.note}"]
    return target, (ends.note, *_notes(fields), *said, *([] if wrapper is None else [wrapper]))


def _ends(fields: Fields, generation: Fields, tokenizer_eos: int | None) -> Ends:
    named = (
        ("generation_config.json", generation.token_ids("eos_token_id")),
        ("config.json", fields.token_ids("eos_token_id")),
        ("the tokenizer", () if tokenizer_eos is None else (tokenizer_eos,)),
    )
    return resolve_ends(named, fields.integer("vocab_size", maximum=MAX_VOCAB))


def _target(fields: Fields, eos_token_ids: tuple[int, ...]) -> TargetConfig:
    architecture = _architecture(fields)
    _refuse_other_maths(fields, _must_be(architecture))
    hidden = fields.integer("hidden_size", maximum=MAX_WIDTH)
    num_heads = fields.integer("num_attention_heads", maximum=MAX_HEADS)
    num_layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    max_positions = fields.integer("max_position_embeddings", maximum=MAX_POSITIONS)
    own_bias = architecture in ("llama", "qwen3", "qwen3_moe", *DEEPSEEK) and fields.flag("attention_bias")
    return TargetConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", maximum=MAX_VOCAB),
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, architecture, num_heads),
        head_dim=_head_dim(fields, architecture, hidden, num_heads),
        intermediate_size=fields.integer("intermediate_size", maximum=MAX_WIDTH),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=read_rope(fields.values, max_positions, fields.origin),
        max_positions=max_positions,
        qkv_bias=own_bias or architecture == "qwen2",
        output_bias=own_bias,
        mlp_bias=architecture in ("llama", "deepseek_v2") and fields.flag("mlp_bias"),
        qk_norm=architecture in ("qwen3", "qwen3_moe"),
        tie_embeddings=fields.flag("tie_word_embeddings"),
        windows=_windows(fields, architecture, num_layers),
        mixture=read_mixture(fields, architecture, num_layers),
        latent=read_latent(fields, architecture, num_heads),
        num_further_layers=fields.integer("num_nextn_predict_layers", 0, minimum=0, maximum=MAX_LAYERS),
        eos_token_ids=eos_token_ids,
    )


def _architecture(fields: Fields) -> str:
    architecture = fields.get("model_type")
    architecture = SAME_AS.get(architecture, architecture) if isinstance(architecture, str) else architecture
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise CheckpointError(f"{fields.origin}: model_type is {architecture!r}; served are {', '.join(ARCHITECTURES)}")
    classes = fields.get("architectures")
    if classes and classes != [ARCHITECTURES[architecture]]:
        hint = "it is a drafter: pass it as drafter, not as model" if "agle" in str(classes) else "use the causal LM"
        raise CheckpointError(
            f"{fields.origin}: architectures is {classes!r}; it must be {ARCHITECTURES[architecture]}: {hint}"
        )
    return architecture


def _must_be(architecture: str) -> dict[str, tuple[object, ...]]:
    if architecture in DEEPSEEK:
        return _MUST_BE | MUST_BE[architecture]
    own = ("num_experts", "num_local_experts") if architecture in MIXTURES else ()
    return _MUST_BE | {name: allowed for name, allowed in _OTHER_EXPERTS.items() if name not in own}


def _refuse_other_maths(fields: Fields, must_be: dict[str, tuple[object, ...]]) -> None:
    for name, allowed in must_be.items():
        value = fields.get(name)
        if value not in allowed:
            raise CheckpointError(f"{fields.origin}: {name} is {value!r}, which changes the maths and is not served")


def _num_kv_heads(fields: Fields, architecture: str, num_heads: int) -> int:
    """Absent means as many as there are query heads for Llama 1; the other classes' defaults fit no checkpoint."""
    like_queries = architecture == "llama" or architecture in DEEPSEEK
    num_kv_heads = fields.integer("num_key_value_heads", num_heads if like_queries else None)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"{fields.origin}: num_key_value_heads is {num_kv_heads}; it must divide num_attention_heads, {num_heads}"
        )
    return num_kv_heads


def _head_dim(fields: Fields, architecture: str, hidden: int, num_heads: int) -> int:
    if architecture in DEEPSEEK:
        return turned_dim(fields)
    default = 128 if architecture in ("qwen3", "qwen3_moe") else hidden // num_heads
    head_dim = fields.integer("head_dim", default, minimum=2, maximum=MAX_HEAD_DIM)
    guessed = fields.get("head_dim") is None and architecture not in ("qwen3", "qwen3_moe")
    if head_dim % 2 or (guessed and hidden % num_heads):
        raise CheckpointError(
            f"{fields.origin}: heads of {head_dim} elements (hidden_size {hidden}, {num_heads} heads) cannot be turned "
            "in pairs; head_dim must be even, and hidden_size a multiple of num_attention_heads"
        )
    return head_dim


def _windows(fields: Fields, architecture: str, num_layers: int) -> tuple[int | None, ...]:
    """The window of each layer. An absent sliding_window is 4096 in transformers' classes, a null one is none."""
    if architecture == "llama" or architecture in DEEPSEEK:
        return (None,) * num_layers
    if architecture == "mixtral":
        absent = fields.get("sliding_window") is None
        return (None if absent else fields.integer("sliding_window"),) * num_layers
    window = None
    if "sliding_window" not in fields.values or fields.get("sliding_window") is not None:
        window = fields.integer("sliding_window", 4096)
    if architecture == "mistral":
        return (window,) * num_layers
    if not fields.flag("use_sliding_window"):
        window = None
    if architecture == "qwen3_moe":
        return (window,) * num_layers
    first = fields.integer("max_window_layers", 28, minimum=0)
    kinds = fields.get("layer_types")
    if kinds is None:
        return tuple(window if index >= first else None for index in range(num_layers))
    return tuple(_window_of(kind, window, fields.origin) for kind in _layer_types(kinds, num_layers, fields.origin))


def _layer_types(kinds: object, num_layers: int, origin: str) -> list[object]:
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise CheckpointError(f"{origin}: layer_types is {kinds!r}; it must name each of the {num_layers} layers")
    return kinds


def _window_of(kind: object, window: int | None, origin: str) -> int | None:
    if kind == "full_attention":
        return None
    if kind == "sliding_attention" and window is not None:
        return window
    raise CheckpointError(
        f"{origin}: layer_types holds {kind!r} with a window of {window}; served are full_attention, and "
        "sliding_attention with use_sliding_window and sliding_window"
    )


def _notes(fields: Fields) -> tuple[str, ...]:
    notes = []
    if fields.get("auto_map") is not None:
        notes.append("auto_map is ignored: code that a checkpoint brings is never run")
    unread = [name for name in fields.unread() if name not in _HARMLESS | CONFIG_FIELDS]
    if unread:
        notes.append(f"not used, as in transformers' own class: {', '.join(unread)}")
    return tuple(notes)
