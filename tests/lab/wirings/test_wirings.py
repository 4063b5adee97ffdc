"""The shipped drafter, wired wrongly on purpose: the doctor names the wiring that it was trained for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.tiny import tiny_drafter, tiny_target
from outpace import LLM, EngineConfig, RequestStats, SamplingParams
from outpace.engine.shipped import shipped_drafter
from outpace.lab.demo.run import PROMPTS
from outpace.lab.doctor import wiring
from outpace.lab.wirings.score import Score, Scorer, Text, read_texts
from outpace.lab.wirings.search import Found, search
from outpace.lab.wirings.variant import Variant, readings, rewired
from outpace.models.drafters.checkpoint import load_drafter

RIGHT = (2, 15, 27)


@pytest.fixture(scope="module")
def plain() -> LLM:
    return LLM("smollm2", drafter=None, max_rows=4, max_context=512)


@pytest.fixture(scope="module")
def texts(plain: LLM) -> list[Text]:
    prompts = [plain.encode([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    answers = plain.generate(prompts, SamplingParams(max_tokens=32))
    return read_texts(plain.target.model, [(answer.prompt_ids, answer.token_ids) for answer in answers])


def found(plain: LLM, texts: list[Text], drafter: str, aux_boundaries: Sequence[int] | None = None) -> Found:
    target = plain.target.model
    loaded = load_drafter(drafter, target, dtype=plain.dtype, device=plain.device, aux_boundaries=aux_boundaries)
    return search(Scorer(loaded, target, texts), loaded)


def shipped() -> Path:
    path = shipped_drafter("smollm2")
    assert path is not None
    return Path(path)


def altered(folder: Path, change: Callable[[dict[str, Tensor]], object], **config: object) -> str:
    """A copy of the shipped drafter with other tensors and fields."""
    shutil.copytree(shipped(), folder)
    for shard in folder.glob("*.safetensors"):
        tensors = load_file(shard)
        change(tensors)
        save_file(tensors, shard, metadata={"format": "pt"})
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | config))
    return str(folder)


@pytest.mark.real_model
def test_the_right_wiring_is_left_alone(plain: LLM, texts: list[Text]) -> None:
    result = found(plain, texts, str(shipped()))
    assert not result.differs
    assert result.given.acceptance > 0.6


@pytest.mark.real_model
def test_other_taps(plain: LLM, texts: list[Text]) -> None:
    result = found(plain, texts, str(shipped()), (5, 10, 20))
    assert result.best.variant.boundaries == RIGHT
    assert result.best.acceptance > 2 * result.given.acceptance
    assert "--aux-boundaries 2 15 27" in wiring.remedy(result.best.variant, result.given.variant)


@pytest.mark.real_model
def test_d2t_off_by_one(plain: LLM, texts: list[Text], tmp_path: Path) -> None:
    def shift(tensors: dict[str, Tensor]) -> None:
        if "d2t" in tensors:
            ids = (tensors["d2t"] + torch.arange(len(tensors["d2t"])) + 1).clamp(max=len(tensors["t2d"]) - 1)
            tensors["d2t"] = ids - torch.arange(len(ids))
            tensors["t2d"] = torch.zeros_like(tensors["t2d"]).index_fill_(0, ids, True)

    result = found(plain, texts, altered(tmp_path / "d", shift))
    assert result.given.acceptance < 0.1, "position 0 collapses"
    assert result.best.variant == replace(result.given.variant, ids="one lower (d2t is off by one)")
    assert result.best.acceptance > 0.6


@pytest.mark.real_model
def test_a_norm_that_is_missing(plain: LLM, texts: list[Text], tmp_path: Path) -> None:
    """The same drafter written for taps that are normed, without saying so: its fc undoes what a norm would."""
    width = plain.target.config.hidden_size

    def scale(tensors: dict[str, Tensor]) -> None:
        if "fc.weight" in tensors:
            parts = []
            for tap, part in zip(RIGHT, tensors["fc.weight"].chunk(3, 1), strict=True):
                rows = torch.cat([text.features_SF[4:, tap * width : (tap + 1) * width] for text in texts])
                parts.append((part.float() * rows.float().square().mean(-1).sqrt().median()).to(part.dtype))
            tensors["fc.weight"] = torch.cat(parts, 1)

    result = found(plain, texts, altered(tmp_path / "d", scale))
    assert result.best.variant == replace(result.given.variant, fusion_norm="per_tap")
    assert result.best.acceptance > result.given.acceptance + 0.15


@pytest.mark.real_model
def test_a_residual_that_is_normed_by_mistake(plain: LLM, texts: list[Text], tmp_path: Path) -> None:
    result = found(plain, texts, altered(tmp_path / "d", lambda tensors: None, norm_before_residual=True))
    assert result.best.variant == replace(result.given.variant, norm_before_residual=False)


def test_a_score_beats_another_only_by_more_than_luck() -> None:
    variant = Variant(boundaries=(0,), fusion_norm="none", norm_before_residual=False, norm_output=False)
    own = Score(variant, torch.tensor([True] * 50 + [False] * 50))
    luck = Score(variant, torch.tensor([True] * 53 + [False] * 47))
    better = Score(variant, torch.tensor([True] * 70 + [False] * 30))
    assert luck.z_over(own) < 3.0 < better.z_over(own)
    assert own.z_over(own) == 0.0


@pytest.mark.real_model
def test_first_drafts_are_those_of_the_engine(plain: LLM, texts: list[Text]) -> None:
    """An engine that drafts one token a cycle accepts as often as the scores say, walked through cycle by cycle."""
    target = plain.target.model
    drafter = load_drafter(str(shipped()), target, dtype=plain.dtype, device=plain.device)
    scored = Scorer(drafter, target, texts[:2]).score(Variant.of(drafter)).hits.tolist()
    drafter.pack()
    engine = LLM.from_parts(plain.target, drafter, EngineConfig(k=1, control="fixed", max_context=512))
    prompts = [text.tokens_S[: text.num_prompt].tolist() for text in texts[:2]]
    answers = engine.generate(prompts, SamplingParams(max_tokens=32))
    accepted, drafted, begin = 0, 0, 0
    for answer in answers:
        place, end = begin, begin + len(answer.token_ids) - 1
        while place < end:
            drafted, accepted = drafted + 1, accepted + scored[place]
            place += 1 + scored[place]
        begin = end
    found = RequestStats.total(answer.stats for answer in answers)
    assert found.drafted == pytest.approx(drafted, abs=2)
    assert found.accepted == pytest.approx(accepted, abs=2)


def test_draft_ids_may_be_read_several_ways() -> None:
    target = tiny_target()
    drafter = tiny_drafter(target)
    assert set(readings(drafter)) == {"as read"}, "all of the vocabulary in order leaves nothing to misread"
    ids = torch.tensor([3, 7, 20, 60])
    drafter.wiring = replace(drafter.wiring, d2t="offset", draft_vocab_size=4)
    drafter.target_ids_V = ids
    found = readings(drafter)
    assert found["one lower (d2t is off by one)"].tolist() == [2, 6, 19, 59]
    assert found["one higher (d2t is off by one)"].tolist() == [4, 8, 21, 60], "the very last has no higher one"
    assert found["with d2t read as ids"].tolist() == [3, 6, 18, 57]


def test_a_rewired_drafter_has_the_same_weights() -> None:
    target = tiny_target()
    drafter = tiny_drafter(target)
    variant = replace(Variant.of(drafter), fusion_norm="whole", norm_before_residual=True)
    joined = rewired(drafter, target.model, variant)
    assert joined.wiring.fusion_norm == "whole" and joined.wiring.norm_before_residual
    assert joined.input_norm is not None and joined.input_norm.weight.eq(1.0).all()
    assert torch.equal(joined.fc.weight, drafter.fc.weight)  # type: ignore[union-attr]
    assert Variant.of(joined).differences(Variant.of(drafter)) == [
        "one norm over all taps before fc",
        "the residual normed",
    ]
