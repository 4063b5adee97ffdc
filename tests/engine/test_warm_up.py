"""Before the first request the common shapes are captured, in order and in the time given; nothing is left behind."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from engine.test_lossless import answers, prompts
from engine.tiny import engine, tiny_config, tiny_drafter, tiny_target
from outpace import LLM, SamplingParams
from outpace.distributed.group import Group
from outpace.engine import warm_up as module
from outpace.engine.frames import Frames, Shape
from outpace.engine.prefill_frames import LENGTHS, PrefillShape
from outpace.engine.runner import Runner
from outpace.engine.warm_up import (
    Compiled,
    capture_common,
    common_prefills,
    common_shapes,
    compile_common,
    prefill_lengths,
)
from outpace.kernels.gpu.walk import tiling_of
from outpace.models.arch import MixtureConfig
from outpace.models.drafter import Drafter
from outpace.models.target import Target
from outpace.speculation.pair import Pair
from outpace.types import SamplingKind

NOTHING = Compiled(seconds=0.0, num_kernels=0)


def framed() -> LLM:
    """On a CPU a frame calls the cycle itself, over the buffers that a graph would have."""
    target = tiny_target(seed=120)
    llm = engine(target, tiny_drafter(target), max_rows=3)
    runner = llm.engine.runner
    runner.frames = Frames(runner._pair, runner.state, runner.page_size)
    return llm


def test_few_rows_come_first_and_every_k_and_kind_is_there() -> None:
    llm = framed()
    config = replace(llm.config, control="auto")
    shapes = common_shapes(llm.engine.runner, config)
    assert [shape.num_rows for shape in shapes] == sorted(shape.num_rows for shape in shapes)
    assert {shape.num_rows for shape in shapes} == {1, 2, 3}
    assert {(s.k, s.needs.kind) for s in shapes[:15]} == {(k, kind) for k in (0, 1, 2, 3, 4) for kind in SamplingKind}
    assert {shape.k for shape in common_shapes(llm.engine.runner, llm.config)} == {0, 4}


def test_short_prefills_are_those_that_chunks_may_have() -> None:
    llm = framed()

    def lengths(**changes: int) -> list[int]:
        found = common_prefills(llm.engine.runner, replace(llm.config, **changes), fills_drafter=True)
        assert [shape.needs.kind for shape in found] == [SamplingKind.GREEDY, SamplingKind.SAMPLED] * (len(found) // 2)
        assert {(shape.num_rows, shape.fills_drafter) for shape in found} == {(1, True)}
        return [shape.num_tokens for shape in found[::2]]

    assert lengths(prefill_chunk=2048, max_context=4096) == [16, 32, 64, 128, 256]
    assert lengths(prefill_chunk=2048, max_context=66) == [16, 32, 64, 128]
    assert lengths(prefill_chunk=2048, max_context=65) == [16, 32, 64]
    assert lengths(prefill_chunk=3, max_context=4096) == [16]


def test_prefill_is_compiled_for_every_tile_of_a_mixture() -> None:
    assert prefill_lengths(tiny_target(seed=120, num_heads=32, num_kv_heads=8).model.half(), 2048) == [16, 2048]
    assert prefill_lengths(tiny_target(seed=120).model, 7) == [7]
    pytest.importorskip("triton", reason="tiles are a kernel's")
    from outpace.kernels.gpu.tiled_mixture import tile_of

    mixture = MixtureConfig(num_experts=40, num_chosen=2, intermediate_size=24, normalizes=True, layers=(True,) * 3)
    heads = {"num_heads": 32, "num_kv_heads": 8}  # so many that attention has one tiling for all lengths
    model = tiny_target(seed=120, architecture="qwen3_moe", mixture=mixture, **heads).model
    lengths = prefill_lengths(model.half(), 4000)
    assert lengths[0] == 16 and lengths[1] == 65 and lengths[-1] == 4000
    assert len(lengths) == 6, "and four tiles, no more"
    found = {tile_of(2 * num, 40, 16) for num in lengths}
    assert found == {tile_of(2 * num, 40, 16) for num in range(65, 4001)}
    assert prefill_lengths(model, 64) == [16, 64]


def test_prefill_is_compiled_for_every_tiling_that_no_frame_has() -> None:
    """Few heads, as of one rank of several, leave much of a GPU idle: longer chunks are split too."""
    model = tiny_target(seed=120, num_heads=8, num_kv_heads=2).model.half()
    lengths = prefill_lengths(model, 2000)
    assert lengths == [16, 512, 1024, 2000]
    splits = [tiling_of(1, num, 8, 2, 2 * model.config.head_dim, None).splits for num in lengths[1:]]
    assert splits == [4, 2, 1]
    assert prefill_lengths(model, LENGTHS[-1]) == [16, LENGTHS[-1]]


def test_everything_is_put_back_and_answers_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = framed()
    runner = llm.engine.runner
    made: list[Shape | PrefillShape] = []
    of = Frames.of
    monkeypatch.setattr(Frames, "of", lambda frames, shape: made.append(shape) or of(frames, shape))
    before = {name: getattr(runner.state, name).clone() for name in ("length_R", "page_table_RP", "num_pending_R")}
    config = replace(llm.config, capture_s=3600.0)
    shapes = common_shapes(runner, config)
    prefills = common_prefills(runner, config, fills_drafter=True)
    for shape in (*shapes, *prefills):
        runner.frames.rehearse(shape)
    assert not made, "a rehearsal makes no frame"
    told = capture_common(runner, config, compile_common(runner, config), fills_drafter=True)
    few = [shape for shape in shapes if shape.num_rows == 1]
    assert made == [*few, *prefills, *shapes[len(few) :]], "no prompt waits for cycles of many rows"
    assert told["captured"] == len(shapes) and told["left_for_later"] == 0
    assert told["prefill"] == {"captured": len(prefills), "left_for_later": 0}
    assert told["compiled"] == 0, "a CPU runs no kernels"
    for name, tensor in before.items():
        assert torch.equal(getattr(runner.state, name)[:-1], tensor[:-1]), f"{name} of rows that are not inert"
    batch, params = prompts(3, seed=121), SamplingParams(max_tokens=20, temperature=0.8, seed=5)
    assert answers(llm.generate(batch, params)) == answers(engine(llm.target).generate(batch, params))


def test_it_ends_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = framed()
    clock = iter(range(100))
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    compiled = Compiled(seconds=1.0, num_kernels=2)
    config = replace(llm.config, capture_s=5.0)
    told = capture_common(llm.engine.runner, config, compiled, fills_drafter=True)
    assert told["captured"] == 3, "each look at the clock takes a second, and one was spent before"
    assert told["left_for_later"] == len(common_shapes(llm.engine.runner, llm.config)) - 3
    assert told["prefill"] == {
        "captured": 0,
        "left_for_later": len(common_prefills(llm.engine.runner, llm.config, fills_drafter=True)),
    }


def test_without_graphs_or_without_time_nothing_is_done() -> None:
    llm = framed()
    runner = llm.engine.runner
    assert compile_common(runner, replace(llm.config, capture_s=0.0)).num_kernels == 0
    told = capture_common(runner, replace(llm.config, capture_s=0.0), NOTHING, fills_drafter=True)
    assert told["captured"] == told["prefill"]["captured"] == 0
    runner.frames = None
    assert compile_common(runner, replace(llm.config, capture_s=3600.0)).num_kernels == 0
    told = capture_common(runner, replace(llm.config, capture_s=3600.0), NOTHING, fills_drafter=True)
    assert told["captured"] == told["left_for_later"] == 0
    assert told["prefill"] == {"captured": 0, "left_for_later": 0}


def test_a_rank_compiles_without_a_word_to_the_others() -> None:
    """The group has no handle: whatever spoke to another rank would raise. Outside it does."""
    llm = framed()
    group = Group(rank=1, size=2)
    target = Target(tiny_config(), group=group)
    drafter = Drafter.create(target, draft_ids=None)
    for parameter in (*target.parameters(), *drafter.parameters()):
        torch.nn.init.normal_(parameter, std=0.1)
    config = llm.config
    pair = Pair.allocate(target, drafter, num_pages=40, page_size=config.page_size, dtype=torch.float32)
    runner = Runner(pair, config)
    runner.frames = Frames(pair, runner.state, config.page_size)
    shapes = [*common_shapes(runner, config), *common_prefills(runner, config, fills_drafter=True)]
    with runner.rehearsing():
        for shape in shapes:
            runner.frames.rehearse(shape)
    assert not group.rehearsal.on
    for shape in (shapes[0], shapes[-1]):
        with pytest.raises(ValueError, match="process group"):
            runner.frames.rehearse(shape)


def test_what_is_compiled_first_leaves_prompts_that_run_as_they_come_and_no_frame() -> None:
    """With kernels left out nothing may be captured."""
    llm = framed()
    module._prefill(llm.engine.runner, llm.config)
    told = llm.engine.runner.describe()
    assert told["prefill"]["eager"] == [] and told["prefill"]["no_frame"] == 0
    assert llm.engine.runner.frames is not None
