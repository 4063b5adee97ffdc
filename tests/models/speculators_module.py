"""The `speculators` package's own EAGLE-3 module, as the oracle for drafter logits.

Importing it imports its training pipeline, which wants packages that no forward pass uses; those that are not installed
are stood in for while it is imported, and only then. Its model code runs as it was published.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers
from torch import Tensor

PIPELINE_PACKAGES = ("datasets", "hs_connectors", "openai")


class _Anything(ModuleType):
    """A package of which every name may be imported."""

    __path__: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _StandIns(MetaPathFinder, Loader):
    """Asked only for what nobody else found."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in PIPELINE_PACKAGES:
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def _stand_ins() -> Iterator[None]:
    finder = _StandIns()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _Anything)]:
            del sys.modules[name]


with _stand_ins(), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

LAYERS = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}


def make_speculator(directory: Path, model_type: str, draft_vocab_size: int, **flags: Any) -> Eagle3DraftModel:
    """A random drafter, written by the package itself, for targets of `drafters.small_target_config`.

    Args:
        directory: gets what `save_pretrained` writes.
        model_type: llama or qwen3 (which has norms of its heads).
        draft_vocab_size: the target's 131 gives no d2t.
        flags: fields of the package's configuration, such as norm_before_residual.
    """
    layer = LAYERS[model_type](
        vocab_size=131,
        hidden_size=48,
        intermediate_size=56,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=draft_vocab_size,
        eagle_aux_hidden_state_layer_ids=[2, 4, 5],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **flags,
    )
    model = Eagle3DraftModel(config).eval()
    _randomise(model)
    if draft_vocab_size < 131:
        ids = torch.randperm(131)[:draft_vocab_size].sort().values
        t2d = torch.zeros(131, dtype=torch.bool)
        t2d[ids] = True
        model.load_vocab_mappings(t2d, ids - torch.arange(draft_vocab_size))
    model.save_pretrained(directory)
    return model


def _randomise(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0, 0.3)
            else:
                parameter.normal_(0.0, 1.5 / parameter.shape[1] ** 0.5)


@torch.no_grad()
def chain_logits(model: Eagle3DraftModel, features_1SF: Tensor, tokens_1S: Tensor, num_steps: int) -> list[Tensor]:
    """Logits [S, V] of each draft step, from every position at once, later steps fed the given tokens."""
    seen: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model(features_1SF, tokens_1S, torch.zeros_like(tokens_1S), ttt_steps=num_steps)
    hook.remove()
    return seen
