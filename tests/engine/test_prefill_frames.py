"""Short prefills over fixed buffers, filled up: what they leave is what a prefill that runs as it comes leaves."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from engine.reference import serve
from engine.test_lookahead import ahead
from engine.test_lossless import answers
from engine.test_pages import assert_all_back
from engine.test_processing import FIELDS
from engine.tiny import VOCAB, engine, tiny_drafter, tiny_target
from outpace import LLM, SamplingParams
from outpace.engine.frame_inputs import PrefillInputs
from outpace.engine.frames import Frames, Shape
from outpace.engine.prefill_frames import LENGTHS, PrefillShape, shape_of
from outpace.engine.ranks import orders
from outpace.engine.runner import Runner
from outpace.speculation.pair import Pair
from outpace.types import Changes, Needs, Outcome, Past, PrefillPlan, PromptLogprobs, RowSettings, SamplingKind

CLOSE = 1e-4
PAGE = 4
PROMPTS = (1, 15, 16, 17, 200)
TARGET = tiny_target(seed=140, max_positions=512)
DRAFTER = tiny_drafter(TARGET, seed=141)
ASKED = SamplingParams(temperature=0.9, top_p=0.9, seed=3, repetition_penalty=1.3, bad_words=[[5]], logit_bias={7: 2.0})
KINDS = {
    "greedy": (Needs(), SamplingParams()),
    "sampled": (Needs(SamplingKind.SAMPLED), SamplingParams(temperature=0.8)),
    "processed": (Needs(SamplingKind.TRUNCATED, True, 5), ASKED),
}


def ids(num: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(100 * seed + num)
    return tuple(torch.randint(0, VOCAB, (num,), generator=generator).tolist())


def llm(**options: Any) -> LLM:
    return engine(TARGET, DRAFTER, **({"prefill_chunk": 256, "max_rows": 3} | options))


def runner_of(*, framed: bool) -> Runner:
    """A runner over memory of its own, in which whatever is not written to can be told."""
    made = llm()
    pair = Pair.allocate(TARGET.model, DRAFTER, num_pages=400, page_size=PAGE, dtype=torch.float32)
    runner = Runner(pair, made.config)
    generator = torch.Generator().manual_seed(9)
    for cache in (pair.cache, pair.drafter_cache):
        assert cache is not None
        cache.keys_LNHD.normal_(generator=generator)
        cache.values_LNHD.normal_(generator=generator)
    runner.state.boundary_PH.normal_(generator=generator)
    runner.provide()
    if framed:
        runner.frames = Frames(pair, runner.state, PAGE)
    return runner


def plan_of(
    rows: Listed[int], chunks: Listed[tuple[int, ...]], num_cached: int, kind: str, *, fills: bool
) -> PrefillPlan:
    """Of rows that are new; what is cached of one lies in the pages that row 0 began with."""
    needs, params = KINDS[kind]
    past = Past(prompt_ids=chunks[0], output_ids=(), stop_ids=()) if needs.processed else None
    pages = [
        (row, column, column + 1 if column < num_cached // PAGE else 1 + 100 * row + column)
        for row, chunk in zip(rows, chunks, strict=True)
        for column in range(-(-(num_cached + len(chunk)) // PAGE))
    ]
    filled = [
        RowSettings(row=row, num_cached=num_cached, params=params, seed=5 + row, max_k=4, past=past) for row in rows
    ]
    columns = list(zip(*pages, strict=True))
    return PrefillPlan(
        rows=tuple(rows),
        chunks=tuple(chunks),
        ends=(True,) * len(rows),
        fills_drafter=fills,
        needs=needs,
        bound=num_cached + max(map(len, chunks)),
        logprobs=tuple((place, 5) for place in range(len(rows))) if needs.num_logprobs else (),
        changes=Changes(rows=tuple(filled), page_rows=columns[0], page_columns=columns[1], pages=columns[2]),
    )


def left(runner: Runner) -> dict[str, torch.Tensor]:
    """All that a forward may have written and that somebody may read: neither the trash page nor the inert row."""
    pair, state = runner._pair, runner.state
    assert pair.drafter_cache is not None and state.extras is not None
    found = {"boundary": state.boundary_PH[1:]}
    for name, cache in (("target", pair.cache), ("drafter", pair.drafter_cache)):
        found |= {f"{name} keys": cache.keys_LNHD[:, PAGE:], f"{name} values": cache.values_LNHD[:, PAGE:]}
    for part in (state, state.extras):
        tensors = {name: getattr(part, name) for name in part.__dataclass_fields__}
        found |= {name: x[:-1] for name, x in tensors.items() if isinstance(x, torch.Tensor) and name != "boundary_PH"}
    return {name: x.clone() for name, x in found.items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, x in expected.items():
        assert torch.allclose(found[name].double(), x.double(), atol=CLOSE), name


def assert_alike(found: Outcome, expected: Outcome) -> None:
    assert found.tokens == expected.tokens and found.logprobs.keys() == expected.logprobs.keys()
    for place, line in expected.logprobs.items():
        for ours, theirs in zip(found.logprobs[place], line, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=CLOSE)
            assert [i for i, _ in ours.top] == [i for i, _ in theirs.top]


@pytest.mark.parametrize("fills", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num", PROMPTS)
def test_it_leaves_what_a_prefill_leaves_that_is_not_filled_up(num: int, kind: str, fills: bool) -> None:
    """Then a prompt that goes on from the first one's pages, as a chat's next turn does."""
    framed, plain = runner_of(framed=True), runner_of(framed=False)
    reused = num // PAGE * PAGE
    plans = [plan_of((0,), [ids(num)], 0, kind, fills=fills), plan_of((1,), [ids(num, 1)], reused, kind, fills=fills)]
    for plan in plans:
        before = left(plain)
        assert_alike(framed.enqueue(plan).read(), plain.enqueue(plan).read())
        assert_same(left(framed), left(plain))
        assert any(not torch.equal(x, before[name]) for name, x in left(plain).items())
    assert framed.frames is not None
    assert framed.frames.prefills.num_replays == 2 and framed.frames.prefills.num_unframed == 0


def test_what_is_not_the_chunks_stays_as_it_is() -> None:
    """To the bit: behind its last token, and in the pages of others."""
    runner = runner_of(framed=True)
    before = left(runner)
    runner.enqueue(plan_of((1,), [ids(17)], 0, "greedy", fills=True)).read()
    found = left(runner)
    written = torch.arange(17) + 100 * PAGE  # page 101, and the trash page is left out
    for name in ("target keys", "target values", "drafter keys", "drafter values"):
        changed = (found[name] != before[name]).flatten(2).any(2).any(0).nonzero()[:, 0]
        assert changed.tolist() == written.tolist(), name
    assert (found["boundary"] != before["boundary"]).any(1).nonzero()[:, 0].tolist() == [100, 101, 102, 103]
    for name in ("length_R", "last_token_R", "pending_tokens_RW", "num_pending_R"):
        assert torch.equal(found[name][[0, 2]], before[name][[0, 2]]), name
    state = runner.state
    assert int(state.length_R[state.inert]) == 0 and not state.page_table_RP[state.inert].any()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_fill_a_batch_up_change_nothing(kind: str) -> None:
    framed, plain = runner_of(framed=True), runner_of(framed=False)
    framed.buckets = (1, 3)
    plan = plan_of((2, 0), [ids(9), ids(23)], 0, kind, fills=True)
    assert shape_of(plan, framed.buckets) == PrefillShape(3, 32, True, plan.needs)
    assert_alike(framed.enqueue(plan).read(), plain.enqueue(plan).read())
    assert_same(left(framed), left(plain))
    extras, inert = framed.state.extras, framed.state.inert
    assert extras is not None and int(framed.state.length_R[inert]) == 0
    assert not extras.counts_RV[inert].any() and (extras.recent_RT[inert] == -1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_that_follow_one_another_take_new_pages_with_them_and_count_the_last_ones_token(kind: str) -> None:
    framed, plain = runner_of(framed=True), runner_of(framed=False)
    first = replace(plan_of((0,), [ids(20)], 0, kind, fills=True), ends=(False,))
    pages = Changes(page_rows=(0,) * 3, page_columns=(5, 6, 7), pages=(60, 61, 62))
    second = replace(first, chunks=(ids(11),), ends=(True,), bound=31, changes=pages)
    third = replace(second, chunks=(ids(1),), bound=32, changes=Changes())
    for plan in (first, second, third):
        assert_alike(framed.enqueue(plan).read(), plain.enqueue(plan).read())
        assert_same(left(framed), left(plain))
    assert framed.state.page_table_RP[0, :8].tolist() == [1, 2, 3, 4, 5, 60, 61, 62]


def test_inputs_name_what_is_asked_and_fill_the_rest_up() -> None:
    inputs = PrefillInputs(3, 4, 2, 9, torch.device("cpu"))
    changes = Changes(page_rows=(4,), page_columns=(7,), pages=(30,))
    for rows, chunks, ends in (
        ((4, 5, 6), ((1, 2, 3, 4), (5, 6, 7), (8,)), (False, True, True)),
        ((2,), ((6, 5),), (True,)),
    ):
        inputs.write(rows, changes, chunks, ends)
        missing = 3 - len(rows)
        assert inputs.rows_B.tolist() == [*rows, *[9] * missing]
        assert inputs.num_tokens_B.tolist() == [*map(len, chunks), *[1] * missing]
        assert inputs.ends_B.tolist() == [*map(int, ends), *[0] * missing]
        assert inputs.tokens_BS.tolist() == [[*c, *[0] * (4 - len(c))] for c in chunks] + [[0] * 4] * missing
    table = torch.zeros(10, 8, dtype=torch.int64)
    inputs.change(table)
    assert table.nonzero().tolist() == [[4, 7]] and int(table[4, 7]) == 30
    assert inputs.fit(changes) and not inputs.fit(Changes(page_rows=(1,) * 3, page_columns=(1, 2, 3), pages=(1, 2, 3)))


def test_which_plans_have_frames() -> None:
    def shape(*lengths: int, **changes: Any) -> tuple[int, int] | None:
        plan = plan_of(range(len(lengths)), [ids(num) for num in lengths], 0, "greedy", fills=True)
        found = shape_of(replace(plan, **changes), (1, 2, 4, 8, 16, 24))
        return None if found is None else (found.num_rows, found.num_tokens)

    assert [shape(num) for num in (1, 16, 17, 128, 129, 256, 257)] == [
        (1, 16), (1, 16), (1, 32), (1, 128), (1, 256), (1, 256), None
    ]  # fmt: skip
    assert shape(60, 3) == (2, 64) and shape(1, 1, 65) is None and shape(*[16] * 16) == (16, 16)
    assert shape(*[1] * 17) is None, "24 rows of 16 tokens are too many"
    assert shape(5, prompt=PromptLogprobs(places=(0,), following=(ids(4),), nums=(0,))) is None
    assert shape(5, needs=Needs(masked=True)) is None


@pytest.mark.parametrize("wandering", [False, True])
def test_answers_stay_and_so_does_what_drafts_come_to(wandering: bool) -> None:
    """Greedy, sampled, and with penalties; the second time behind prefixes that are known."""
    batch = [list(ids(num, seed)) for seed in (3, 4) for num in PROMPTS]
    fields: list[dict[str, Any]] = [{}, {"temperature": 0.8}, FIELDS["all"] | {"temperature": 1.1, "top_k": 9}]
    params = [SamplingParams(max_tokens=12, seed=i, **fields[i % 3]) for i in range(len(batch))]
    plain, framed = llm(), ahead(llm(), 1, wandering=wandering)
    for _ in range(2):
        expected, found = plain.generate(batch, params), framed.generate(batch, params)
        assert answers(found) == answers(expected)
        batch = [[*prompt, *result.token_ids, 7] for prompt, result in zip(batch, found, strict=True)]
    told = framed.engine.runner.describe()["prefill"]
    assert told["replays"] == told["eager_replays"] > 4 and told["captured"] == 0
    assert {eager["why"] for eager in told["eager"]} == {"no CUDA device"}
    assert {(eager["rows"], eager["tokens"]) for eager in told["eager"]} >= {(1, 256)}
    assert_all_back(framed)


def test_drafts_stand_as_often_as_without_frames() -> None:
    """So the drafter's cache is what it was."""
    batch = [list(ids(num, 5)) for num in (3, 15, 16, 17, 33)]
    plain, framed = llm(), ahead(llm(), 1)
    for prompt in batch:
        for known in (prompt, prompt + list(ids(9, 6))):
            (expected,), (found,) = (x.generate([known], SamplingParams(max_tokens=30)) for x in (plain, framed))
            assert found.token_ids == expected.token_ids
            assert (found.stats.drafted_at, found.stats.accepted_at) == (
                expected.stats.drafted_at,
                expected.stats.accepted_at,
            )
    assert framed.engine.runner.describe()["prefill"]["replays"] == 10


def test_others_run_as_they_come_and_are_counted() -> None:
    """Longer ones, and those with log-probabilities of their prompts."""
    framed, plain = ahead(llm(prefill_chunk=512), 1), llm(prefill_chunk=512)
    asks = [
        (list(ids(300)), SamplingParams(max_tokens=4)),
        (list(ids(9)), SamplingParams(max_tokens=4, prompt_logprobs=2)),
    ]
    for prompt, params in asks:
        (found,), (expected,) = (serve(x, [prompt], [params]) for x in (framed, plain))
        assert found.token_ids == expected.token_ids
    told = framed.engine.runner.describe()["prefill"]
    assert (told["no_frame"], told["replays"]) == (2, 0)
    with framed.engine.runner.without_graphs():
        framed.generate([list(ids(9))], SamplingParams(max_tokens=1))
    assert framed.engine.runner.describe()["prefill"] == told


def test_only_cycles_have_phases() -> None:
    runner = runner_of(framed=True)
    plan = plan_of((0,), [ids(9)], 0, "greedy", fills=True)
    with runner.with_phases():
        ticket = runner.enqueue(plan)
        ticket.read()
        assert ticket.phases() is None and runner.describe()["prefill"]["replays"] == 1
    assert runner.describe()["prefill"]["replays"] == 0


def test_frames_of_both_kinds_share_the_room_that_there_is() -> None:
    runner = runner_of(framed=False)
    frames = Frames(runner._pair, runner.state, PAGE, most=2)
    cycle, short, long = Shape(1, 1, Needs()), PrefillShape(1, 16, True, Needs()), PrefillShape(1, 32, True, Needs())
    kept = frames.of(short)
    frames.of(cycle)
    assert frames.of(short) is kept
    frames.of(long)
    assert frames.of(short) is kept and frames.num_dropped == 1, "the cycle's went"
    assert [eager["tokens"] for eager in frames.describe()["prefill"]["eager"]] == [32, 16]
    assert frames.describe()["eager"] == []


@pytest.mark.parametrize(
    "shape", [Shape(2, 3, Needs()), PrefillShape(1, LENGTHS[-1], False, Needs(SamplingKind.SAMPLED))]
)
def test_other_ranks_are_told_of_both(shape: Shape | PrefillShape) -> None:
    order = orders.capture_of(shape)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=orders.Order) == order
