"""Two GPUs that share a model write what one writes alone, drafted or not, from graphs on both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.test_lossless import answers, prompts
from models.checkpoints import make_checkpoint
from outpace import LLM, Grammar, SamplingParams
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import save_drafter
from outpace.models.registry import load_target
from outpace.models.source import locate
from server.models import make_drafter, make_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 1001,
    "max_position_embeddings": 512,
}
GREEDY = SamplingParams(max_tokens=48, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=48, ignore_eos=True, temperature=0.9, top_p=0.95, seed=3)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    target, drafter = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("drafter")
    make_checkpoint(target, "llama", **SIZES)
    _save_random_drafter(target, drafter)
    return str(target), str(drafter)


def _save_random_drafter(target: Path, directory: Path) -> None:
    loaded = load_target(locate(str(target)), dtype=torch.float32, device="cpu")
    save_drafter(Drafter.create(loaded.model, draft_ids=torch.arange(0, 1001, 2)), directory)


def test_two_ranks_write_what_one_writes(models: tuple[str, str], dtype: str) -> None:
    target, drafter = models
    batch = [[token % 1001 for token in prompt] for prompt in prompts(6, seed=1)]
    alone = LLM(target, drafter=None, dtype=dtype, device="cuda", max_context=256)
    expected = [answers(alone.generate(batch, params)) for params in (GREEDY, SAMPLED)]
    with LLM(
        target, drafter=drafter, dtype=dtype, device="cuda", k=3, control="fixed", tensor_parallel=2, max_context=256
    ) as llm:
        for params, one in zip((GREEDY, SAMPLED), expected, strict=True):
            plain = replace(params, max_k=0)
            shared = answers(llm.generate(batch, plain))
            assert answers(llm.generate(batch, params)) == shared, "drafts changed an answer"
            if dtype == "float32":
                assert shared == one
        described = llm.describe()
        assert described["graphs"]["captured"] > 0 and not described["graphs"]["eager"]
        assert [rank["device"] for rank in described["parallel"]["ranks"]] == ["cuda:0", "cuda:1"]


def test_calibrated_control_runs_on_all_ranks(models: tuple[str, str]) -> None:
    target, drafter = models
    with LLM(target, drafter=drafter, device="cuda", k=3, tensor_parallel=2, max_context=256) as llm:
        assert llm.describe()["control"]
        batch = [[token % 1001 for token in prompt] for prompt in prompts(4, seed=2)]
        plain = replace(GREEDY, max_k=0)
        assert answers(llm.generate(batch, GREEDY)) == answers(llm.generate(batch, plain))


def test_two_ranks_follow_grammars_as_one_does(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target")
    drafter = str(make_drafter(target, tmp_path / "drafter"))
    grammar = Grammar.regex("(ab|cd)+[0-9]{2,12}x")
    params = [SamplingParams(max_tokens=40, grammar=grammar), replace(SAMPLED, grammar=grammar), SAMPLED]
    batch = [[1, 2, 3], [9] * 20, [5, 6]]
    alone = LLM(str(target), drafter=None, dtype="float32", device="cuda", max_context=256)
    expected = answers(alone.generate(batch, params))
    with LLM(
        str(target), drafter=drafter, dtype="float32", device="cuda", k=3, tensor_parallel=2, max_context=256
    ) as llm:
        assert answers(llm.generate(batch, params)) == expected
        assert not llm.describe()["graphs"]["eager"]
