"""Recognises which trainer wrote a drafter, and refuses by name what is no one-layer EAGLE-3 drafter.

| dialect | told by |
|---|---|
| speculators | `speculators_model_type` |
| modelopt | `eagle_config` with ModelOpt's layer-norm switches; `midlayer.` (old) or `layers.0.` (new) |
| angelslim | architecture `Eagle3LlamaForCausalLM` |
| mla | the tensor `kv_a_proj_with_mqa`; architecture `Eagle3DeepseekV2ForCausalLM` (Kimi's) |
| lightseek | architecture `LlamaForCausalLMEagle3`, no draft_vocab_size, the whole vocabulary |
| specforge | architecture `LlamaForCausalLMEagle3` (lmsys, AQ-MedAI and Outpace too) |
| safeailab | none of these: the authors' own code, whose config names a plain Llama |

The dialect is for people: what is computed follows from tensors and fields alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from outpace.errors import DrafterError
from outpace.models.fields import Fields

_MODELOPT_FIELDS = frozenset(
    {"use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm", "next_layer_regular"}
)

MLA = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")
"""Architectures whose attention is DeepSeek's."""

_OTHER_METHODS = {
    "deepseek": "EAGLE 1 or an MTP head of DeepSeek's",
    "medusa": "Medusa",
    "dflash": "DFlash",
    "dspark": "DSpark",
    "peagle": "P-EAGLE, which drafts in parallel",
    "mtp": "an MTP head",
}
"""Parts of architecture names, and what they stand for."""


def has_latents(weights: Mapping[str, Tensor], prefix: str) -> bool:
    """Whether its attention is a latent one."""
    return f"{prefix}self_attn.kv_a_proj_with_mqa.weight" in weights


def name_dialect(top: Fields, whole_vocabulary: bool, latent: bool) -> str:
    """Who wrote it. `whole_vocabulary`: it proposes every target token; `latent`: its attention is a latent one."""
    eagle = top.get("eagle_config")
    architectures = _architectures(top)
    if top.get("speculators_model_type") is not None:
        return "speculators"
    if isinstance(eagle, dict) and _MODELOPT_FIELDS & eagle.keys():
        return "modelopt"
    if latent:
        return "mla"
    if "Eagle3LlamaForCausalLM" in architectures:
        return "angelslim"
    if "LlamaForCausalLMEagle3" in architectures:
        return "lightseek" if whole_vocabulary and top.get("draft_vocab_size") is None else "specforge"
    return "safeailab"


def refuse_other_methods(top: Fields, weights: Mapping[str, Tensor]) -> None:
    """Raises DrafterError for drafters that are no EAGLE-3, or of an attention that is not served."""
    kind = top.get("speculators_model_type")
    if kind not in (None, "eagle3"):
        raise DrafterError(f"speculators_model_type is {kind!r}; only EAGLE-3 drafters (eagle3) are served")
    architectures = _architectures(top)
    latent = any("kv_a_proj_with_mqa" in name for name in weights)
    if not latent and (named := [name for name in architectures if name in MLA]):
        raise DrafterError(f"architectures is {named}, but no tensor is called kv_a_proj_with_mqa; it is incomplete")
    for part, method in _OTHER_METHODS.items():
        if part in str([name for name in architectures if name not in MLA]).lower():
            raise DrafterError(f"architectures is {architectures}: {method}; only EAGLE-3 drafters are served")
    eagle = top.get("eagle_config")
    if isinstance(eagle, dict) and eagle.get("use_aux_hidden_state") is False:
        raise DrafterError(
            "eagle_config.use_aux_hidden_state is false: like EAGLE 1 and 2 it reads the target's last hidden state "
            "alone; only EAGLE-3 drafters, which tap several layers, are served"
        )


def _architectures(top: Fields) -> list[str]:
    """The class names; none if the field is missing.

    Raises:
        DrafterError: it is something else than a list of texts.
    """
    names = top.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DrafterError(f"architectures is {names!r}; it must be a list of class names")
    return names


def layer_prefix(layer: Fields, weights: Mapping[str, Tensor]) -> str:
    """What the names of the one layer's tensors begin with.

    Args:
        layer: fields that describe the layer. weights: of the file.

    Raises:
        DrafterError: there are several layers, none, or one of EAGLE 1 or 2.
    """
    found = sorted({match[0] for name in weights if (match := re.match(r"(midlayer|layers\.\d+)\.", name))})
    told = layer.integer("num_hidden_layers", 1)
    if len(found) > 1 or told > 1:
        raise DrafterError(
            f"it has {max(told, len(found))} layers (num_hidden_layers {told}; tensors under {', '.join(found)}); "
            "EAGLE-3 drafters of one layer are served"
        )
    if found not in (["midlayer."], ["layers.0."]):
        raise DrafterError("it has no tensors under midlayer. or layers.0.; it is no EAGLE-3 drafter")
    _refuse_earlier_eagle(found[0], weights)
    return found[0]


def _refuse_earlier_eagle(prefix: str, weights: Mapping[str, Tensor]) -> None:
    """EAGLE 1 and 2 join embedding and hidden state in `fc` and attend over H; EAGLE-3 attends over both, 2H."""
    name = f"{prefix}self_attn.{'kv_a_proj_with_mqa' if has_latents(weights, prefix) else 'q_proj'}.weight"
    query, output = weights.get(name), weights.get(f"{prefix}self_attn.o_proj.weight")
    if query is not None and output is not None and query.dim() == 2 and query.shape[1] != 2 * output.shape[0]:
        raise DrafterError(
            f"{name} takes {query.shape[1]} features; an EAGLE-3 layer takes embedding and "
            f"hidden state, 2 × {output.shape[0]}: it is a drafter of EAGLE 1 or 2, which are not served"
        )
