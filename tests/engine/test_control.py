"""Automatic control in the engine: it drafts with a drafter that is right, leaves one that is wrong, and says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.test_drafter_cache import draft_from_scratch, watch
from engine.test_lossless import answers, prompts, whole
from engine.tiny import OracleDrafter, engine, tiny_drafter, tiny_target
from outpace import LLM, ConfigError, EngineConfig, SamplingParams
from outpace.models.registry import LoadedTarget
from outpace.speculation.automatic import AutomaticControl
from outpace.speculation.control import CycleSeen, Decision, Drafting
from outpace.speculation.cost import CostTable

LONG = SamplingParams(max_tokens=90)


def controlled(target: LoadedTarget, known: list[tuple[int, ...]], accuracy: float, cycle: float) -> LLM:
    """An engine whose table says that a cycle takes so many plain steps, whatever this machine's clock says."""
    llm = engine(target, OracleDrafter(known, accuracy))
    costs = CostTable((1, 16), (0, 2, 4))
    for bucket in (1, 16):
        for k, steps in ((0, 1.0), (2, (1 + cycle) / 2), (4, cycle)):
            costs.set(bucket, k, [(0, steps)])
    control = AutomaticControl(costs)
    observe, pay = control.observe, control.pay

    def on_time(seen: CycleSeen) -> None:
        observe(replace(seen, seconds=costs.seconds(seen.num_rows, seen.k, seen.context)))

    control.observe = on_time  # type: ignore[method-assign]
    control.pay = lambda num_rows, context, seconds: pay(num_rows, context, 2.0)  # type: ignore[method-assign]
    llm.engine.control = llm.engine.scheduler.control = control
    return llm


@pytest.mark.parametrize(("accuracy", "cycle", "drafts"), [(1.0, 1.3, True), (0.0, 1.3, False), (1.0, 9.0, False)])
def test_it_drafts_where_that_pays(accuracy: float, cycle: float, drafts: bool) -> None:
    target = tiny_target(seed=80)
    batch = [prompt[:8] for prompt in prompts(3, seed=81)]
    plain = engine(target).generate(batch, LONG)
    llm = controlled(target, whole(plain), accuracy, cycle)
    found = llm.generate(batch, LONG)
    assert answers(found) == answers(plain)
    decision = llm.engine.control.describe()
    assert (decision["k"] > 0) == drafts, decision
    assert "breaks even at" in decision["why"]
    drafted = sum(result.stats.drafted for result in found)
    assert drafted > 100 if drafts else drafted < 100


def test_prefill_leaves_out_a_drafter_that_does_not_pay_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target(seed=84)
    batch = [prompt[:8] for prompt in prompts(6, seed=85)]
    plain = engine(target).generate(batch, LONG)
    llm = controlled(target, whole(plain), 0.0, 1.3)
    oracle = llm.drafter
    assert isinstance(oracle, OracleDrafter)
    stored: list[int] = []
    monkeypatch.setattr(oracle, "store", lambda *_, **__: stored.append(1))

    def prefill_of(index: int) -> int:
        """How often drafter entries are stored until the first token is there."""
        before = len(stored)
        chunk = next(llm.stream(batch[index], SamplingParams(max_tokens=1)))
        assert chunk.token_ids == plain[index].token_ids[:1]
        return len(stored) - before

    assert prefill_of(0) == 1, "nothing is known yet"
    assert answers(llm.generate(batch[1:2], LONG)) == answers(plain[1:2])
    assert llm.engine.control.describe()["k"] == 0
    assert prefill_of(2) == 0
    oracle.load_state_dict(OracleDrafter(whole(plain), 1.0).state_dict())
    for index in (3, 4, 5):
        assert answers(llm.generate(batch[index : index + 1], LONG)) == answers(plain[index : index + 1])
    assert llm.engine.control.describe()["k"] > 0
    assert prefill_of(2) == 1, "pages without drafter entries are not reused by a request that drafts"


class Scripted:
    """Does as it is told."""

    k, fills = 4, True

    def choose(self, batch: Sequence[Drafting]) -> Decision:
        return Decision(self.k, "told")

    def fills_drafter(self) -> bool:
        return self.fills


def test_prefixes_that_the_drafter_has_not_seen_serve_those_that_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target(seed=86)
    drafter = tiny_drafter(target, seed=87)
    llm = engine(target, drafter)
    seen = watch(llm, monkeypatch)
    control = llm.engine.scheduler.control = Scripted()
    prompt = prompts(1, seed=88)[0] * 3

    def run(k: int, fills: bool, prompt: list[int] = prompt) -> int:
        """Tokens whose prefill was saved."""
        control.k, control.fills = k, fills
        expected = engine(target).generate([prompt], SamplingParams(max_tokens=12))
        found = llm.generate([prompt], SamplingParams(max_tokens=12))
        assert answers(found) == answers(expected)
        return found[0].stats.reused

    assert run(0, False) == 0
    assert run(0, False) > 0, "plain decoding reuses what plain decoding left"
    assert run(4, True) == 0, "drafting does not"
    assert run(4, True) > 0, "but what drafting left"
    longer = [*prompt, *prompt]
    assert run(0, False, longer) > 0, "half of it is filled"
    assert run(4, False, longer) > len(prompt), "a catch-up fills the other half, shared as it is"
    assert run(4, True, longer) > len(prompt), "and then it is there for all"
    assert len(seen()) > 30
    for tokens, drafts in seen():
        assert drafts == draft_from_scratch(target, drafter, tokens, 4)[: len(drafts)], f"after {len(tokens)} tokens"


def test_prompts_that_are_made_ready_and_those_that_are_not_go_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target(seed=89)
    drafter = tiny_drafter(target, seed=90)
    llm = engine(target, drafter)
    seen = watch(llm, monkeypatch)
    control = llm.engine.scheduler.control = Scripted()
    batch = [list(range(20)), [7, 8, 9]]  # the second chunk of the one has room for the other
    expected = engine(target).generate(batch, SamplingParams(max_tokens=8))
    tokens: dict[int, list[int]] = {}
    for index, prompt in enumerate(batch):
        control.fills = index == 1
        tokens[llm.engine.add(prompt, SamplingParams(max_tokens=8))] = []
        llm.engine.step()
    while llm.engine.busy:
        llm.engine.step()
        for update in llm.engine.poll_all():
            tokens[update.request_id] += update.token_ids
    assert [tuple(found) for found in tokens.values()] == answers(expected)
    assert seen()
    for known, drafts in seen():
        assert drafts == draft_from_scratch(target, drafter, known, 4)[: len(drafts)], f"after {len(known)} tokens"


def test_by_default_the_engine_calibrates_itself_and_shows_what_it_found() -> None:
    target = tiny_target(seed=82)
    batch = prompts(3, seed=83)
    plain = answers(engine(target).generate(batch, LONG))
    llm = engine(target, OracleDrafter([], 0.0), control="auto")
    assert answers(llm.generate(batch, LONG)) == plain
    shown = json.loads(json.dumps(llm.describe()))["control"]
    assert shown["kind"] == "auto"
    assert {row["k"] for row in shown["costs"] if row["bucket"] == 1} == {0, 1, 2, 3, 4}
    assert all(row["base_ms"] > 0 for row in shown["costs"])


class Told(AutomaticControl):
    """Does as it is told, and keeps what the engine says of cycles and catch-ups."""

    def __init__(self) -> None:
        super().__init__(CostTable((16,), (0, 4)))
        self.k = 0
        self.seen: list[CycleSeen] = []
        self.paid: list[tuple[int, int]] = []
        self.learnt: list[tuple[int, int]] = []

    def choose(self, batch: Sequence[Drafting]) -> Decision:
        return Decision(self.k, "told")

    def observe(self, seen: CycleSeen) -> None:
        assert seen.seconds > 0.0
        self.seen.append(seen)

    def pay(self, num_rows: int, context: int, seconds: float) -> None:
        assert seconds > 0.0
        self.paid.append((num_rows, context))

    def learn(self, request: Drafting, num_drafts: int, num_accepted: int) -> None:
        self.learnt.append((num_drafts, num_accepted))


def test_control_is_told_of_every_cycle_and_catch_up_and_of_nothing_else() -> None:
    target = tiny_target(seed=91)
    batch = [[1, 2, 3], [4] * 8]
    plain = engine(target).generate(batch, SamplingParams(max_tokens=40))
    llm = engine(target, OracleDrafter(whole(plain), 1.0))
    told = llm.engine.control = llm.engine.scheduler.control = Told()
    for prompt, max_k in zip(batch, (None, 0), strict=True):
        llm.engine.add(prompt, SamplingParams(max_tokens=40, max_k=max_k))
    for _ in range(1 + 5):
        llm.engine.step()
    assert [(seen.num_rows, seen.k, seen.context, seen.num_emitted) for seen in told.seen] == [
        (2, 0, 11 + 2 * step, 2) for step in range(5)
    ]
    assert (told.paid, told.learnt) == ([], [])
    told.k = 4
    for _ in range(1 + 2):
        llm.engine.step()
    assert told.paid == [(1, 3 + 5)], "one row had something to catch up with"
    assert [(seen.num_rows, seen.k, seen.context, seen.num_emitted) for seen in told.seen[5:]] == [
        (2, 4, 21, 6),
        (2, 4, 27, 6),
    ]
    assert told.learnt == [(4, 4)] * 2


def test_control_is_told_of_those_tokens_that_reach_the_user() -> None:
    """Behind an answer's end a drafter may be right for nothing; so drafting looked good where answers are short."""
    target = tiny_target(seed=92)
    (plain,) = engine(target).generate([[1, 2, 3]], SamplingParams(max_tokens=40))
    llm = engine(target, OracleDrafter(whole([plain]), 1.0))
    told = llm.engine.control = llm.engine.scheduler.control = Told()
    told.k = 4
    for max_tokens, stops in ((4, ()), (40, plain.token_ids[2:3])):
        told.seen.clear()
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=stops)
        (found,) = llm.generate([[1, 2, 3]], params)
        assert [seen.num_emitted for seen in told.seen] == [len(found.token_ids) - 1]


def test_answers_that_are_too_short_for_drafts_have_none() -> None:
    target = tiny_target(seed=93)
    batch = [prompt[:8] for prompt in prompts(4, seed=94)]
    plain = engine(target).generate(batch, SamplingParams(max_tokens=2))
    llm = controlled(target, whole(engine(target).generate(batch, LONG)), 1.0, 1.3)
    assert sum(result.stats.drafted for result in llm.generate(batch, LONG)) > 0
    found = llm.generate(batch, SamplingParams(max_tokens=2))
    assert answers(found) == answers(plain)
    assert sum(result.stats.drafted for result in found) == 0


def test_an_unknown_control_is_refused() -> None:
    with pytest.raises(ConfigError, match="it must be auto or fixed"):
        EngineConfig(control="always")  # type: ignore[arg-type]
