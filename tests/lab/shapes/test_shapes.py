from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from outpace import ConfigError, SamplingParams
from outpace.lab.limits.reads import drafter_reads, fusion_reads, target_reads
from outpace.lab.shapes.dense import DRAFT_VOCAB, SHAPES, WEIGHT_STD, random_llm, random_models
from outpace.models.drafter import Drafter
from outpace.models.target import Target

BF16 = 2


def num_elements(*modules: torch.nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def meta_pair(shape: str) -> tuple[Target, Drafter]:
    """Parameters without memory."""
    target = Target(SHAPES[shape](), dtype=torch.bfloat16, device="meta")
    return target, Drafter.create(target, draft_ids=torch.arange(min(DRAFT_VOCAB, target.config.vocab_size)))


@pytest.mark.parametrize(
    ("shape", "parameters", "kv_per_token"),
    [("llama-8b", 8_030_261_248, 131_072), ("llama-1b", 1_235_814_400, 32_768)],
)
def test_shapes_are_those_of_the_models_they_are_named_after(shape: str, parameters: int, kv_per_token: int) -> None:
    target, _ = meta_pair(shape)
    assert num_elements(target) == parameters, "the published number of parameters"
    assert target_reads(target.config, BF16).kv_per_token == kv_per_token


@pytest.mark.parametrize("shape", SHAPES)
def test_a_plain_step_reads_every_weight_but_the_embedding_table(shape: str) -> None:
    target, _ = meta_pair(shape)
    reads = target_reads(target.config, BF16)
    assert reads.weights == BF16 * num_elements(target.layers, target.norm, target.lm_head)
    assert reads.embedding_row == BF16 * target.embed.weight.shape[1]
    products = [p.numel() for p in (*target.layers.parameters(), target.lm_head.weight) if p.dim() == 2]
    assert reads.flops_per_token == 2 * sum(products)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_draft_step_and_the_fusion_read_every_weight_of_the_drafter(shape: str) -> None:
    _, drafter = meta_pair(shape)
    assert drafter.fc is not None
    fusion = fusion_reads(drafter.wiring, BF16).weights
    assert fusion == BF16 * num_elements(drafter.fc)
    assert drafter_reads(drafter.wiring, BF16).weights == BF16 * num_elements(drafter) - fusion


@pytest.mark.parametrize(
    "changes", [{"qk_norm": True}, {"qkv_bias": True}, {"output_bias": True, "mlp_bias": True}], ids=str
)
def test_norms_and_biases_are_counted(changes: dict[str, bool]) -> None:
    target = Target(replace(SHAPES["tiny"](), **changes), device="meta")  # type: ignore[arg-type]
    assert target_reads(target.config, 4).weights == 4 * num_elements(target.layers, target.norm, target.lm_head)


def test_weights_are_random_and_the_same_every_time() -> None:
    first, second = (
        random_models("tiny", drafter=True, device="cpu", dtype=torch.float32, draft_vocab_size=100) for _ in range(2)
    )
    embeddings = first[0].model.embed.weight
    assert torch.equal(embeddings, second[0].model.embed.weight)
    assert float(embeddings.std()) == pytest.approx(WEIGHT_STD, rel=0.05)
    assert bool((first[0].model.norm.weight == 1).all())
    assert first[1] is not None
    ids_V = first[1].target_ids_V
    assert len(ids_V) == 100
    assert bool((ids_V.diff() > 0).all())
    assert int(ids_V[-1]) > 500, "spread over the vocabulary of 512"


def test_an_engine_over_them_answers_under_simulated_acceptance() -> None:
    llm = random_llm(
        "tiny",
        drafter=True,
        device="cpu",
        dtype=torch.float32,
        k=3,
        control="fixed",
        max_context=64,
        num_pages=20,
        simulate_acceptance=(1.0,),
    )
    (result,) = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=21))
    assert len(result.token_ids) == 21
    assert result.stats.accept_length == 4.0
    assert random_llm("tiny", drafter=False, device="cpu", dtype=torch.float32, max_context=64).drafter is None


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"llama-9b.*llama-8b"):
        random_models("llama-9b", drafter=False, device="cpu", dtype=torch.float32)
