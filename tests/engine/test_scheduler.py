"""Which forwards are planned, and in what order: turns of prefill and cycles, budgets, and who gives pages back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.test_pages import assert_all_back
from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import LLM, SamplingParams
from outpace.engine import memory
from outpace.engine.changes import PendingChanges
from outpace.engine.sequence import Counts
from outpace.speculation.control import Decision, Drafting
from outpace.types import CatchUpPlan, Changes, CyclePlan, Plan, PrefillPlan, RowSettings


class Told:
    """Control that does as it is told."""

    k = 0

    def choose(self, batch: Sequence[Drafting]) -> Decision:
        return Decision(self.k, "told")

    def fills_drafter(self) -> bool:
        return True


TARGET = tiny_target(seed=140)
DRAFTER = tiny_drafter(TARGET)


def planned(llm: LLM) -> list[Plan]:
    """Fills with every plan that is run from now on."""
    plans: list[Plan] = []
    enqueue = llm.engine.runner.enqueue

    def watched(plan: Plan, *masks: object) -> object:
        plans.append(plan)
        return enqueue(plan, *masks)  # type: ignore[arg-type]

    llm.engine.runner.enqueue = watched  # type: ignore[method-assign,assignment]
    return plans


def run(llm: LLM) -> None:
    while llm.engine.busy:
        llm.engine.step()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.sampled_from([1, 5, 16, 40]))
def test_a_prefill_takes_the_oldest_that_fit_its_budget_and_no_fewer(lengths: list[int], budget: int) -> None:
    """Rows are padded to the longest chunk, and what that comes to is what a forward costs."""
    llm = engine(TARGET, prefill_chunk=budget, max_rows=6)
    plans = planned(llm)
    for length in lengths:
        llm.engine.add([1] * length, SamplingParams(max_tokens=1))
    left = list(lengths)
    run(llm)
    for plan in plans:
        assert isinstance(plan, PrefillPlan), "one token needs no cycle"
        waiting = [min(length, budget) for length in left if length]
        expected = next((n for n in range(1, len(waiting)) if (n + 1) * max(waiting[: n + 1]) > budget), len(waiting))
        assert [len(chunk) for chunk in plan.chunks] == waiting[:expected]
        served = [place for place, length in enumerate(left) if length][:expected]
        for place in served:
            left[place] -= min(left[place], budget)
    assert not any(left)


def test_a_long_prompt_and_running_answers_take_turns() -> None:
    llm = engine(TARGET, DRAFTER, prefill_chunk=4)
    llm.engine.add([1, 2, 3], SamplingParams(max_tokens=40, max_k=0))
    llm.engine.step()
    plans = planned(llm)
    llm.engine.add([5] * 40, SamplingParams(max_tokens=1))
    for _ in range(20):
        llm.engine.step()
    assert [type(plan) for plan in plans] == [CyclePlan, PrefillPlan] * 10


def test_the_youngest_gives_its_pages_back_and_returns_before_those_that_wait() -> None:
    llm = engine(TARGET, num_pages=11, max_rows=2)
    scheduler = llm.engine.scheduler
    old, young, _ = (llm.engine.add(prompt, SamplingParams(max_tokens=16)) for prompt in ([1] * 12, [2] * 12, [3] * 12))
    while not scheduler.num_preempted:
        llm.engine.step()
    admitted = [old]
    while admitted == [old]:
        admitted = [s.request.id for s in scheduler.admitted] or [old]
        llm.engine.step()
    assert young in admitted[:2]
    run(llm)
    assert_all_back(llm)


@pytest.mark.parametrize(("num_spare", "num_admitted"), [(6, 2), (7, 3)])
def test_who_comes_in_leaves_a_page_for_each_that_is_in(num_spare: int, num_admitted: int) -> None:
    """They will soon need one, and would push out who has just come: 1 + 1 + 3 pages, and 2 for the first two."""
    llm = engine(TARGET, num_pages=num_spare + 1)
    for length in (3, 3, 12):
        llm.engine.add([length] * length, SamplingParams(max_tokens=4))
    llm.engine.step()
    assert len(llm.engine.scheduler.admitted) == num_admitted
    run(llm)
    assert_all_back(llm)


def test_a_prompt_is_there_for_others_as_soon_as_it_is_computed() -> None:
    llm = engine(TARGET, DRAFTER)
    prompt = [5, 6, 7, 8] * 3
    llm.engine.add([*prompt, 1], SamplingParams(max_tokens=60))
    for _ in range(3):
        llm.engine.step()
    llm.engine.add([*prompt, 2], SamplingParams(max_tokens=60))
    llm.engine.step()
    assert [s.num_reused for s in llm.engine.scheduler.admitted] == [0, 12]


def test_refused_drafts_leave_no_pages_behind() -> None:
    """A cycle may need pages for all of its drafts; what it did not fill is there for the next."""
    llm = engine(TARGET, DRAFTER, k=8)
    for prompt in ([1, 2, 3], [4] * 9):
        llm.engine.add(prompt, SamplingParams(max_tokens=100))
    for _ in range(30):
        before = [s.num_cached for s in llm.engine.scheduler.admitted]
        llm.engine.step()
        for sequence, num_cached in zip(llm.engine.scheduler.admitted, before, strict=False):
            assert len(sequence.pages) <= -(-(num_cached + 8 + 1) // 4)


def test_a_catch_up_takes_the_oldest_that_fit_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "HISTORY", 8)
    llm = engine(TARGET, DRAFTER, prefill_chunk=20)
    llm.engine.scheduler.control = told = Told()
    for start in range(5):
        llm.engine.add([start] * 4, SamplingParams(max_tokens=40))
    for _ in range(12):
        llm.engine.step()
    rows = [s.row for s in llm.engine.scheduler.admitted]
    plans = planned(llm)
    told.k = 4
    for _ in range(8):
        llm.engine.step()
    caught_up = [plan for plan in plans if isinstance(plan, CatchUpPlan)]
    assert not any(any(plan.missing) for plan in caught_up), "the device keeps what it computed"
    assert [plan.rows for plan in caught_up] == [tuple(rows[:2]), tuple(rows[2:4]), tuple(rows[4:])]
    assert {num for plan in caught_up for num in plan.nums} == {8}


def test_a_row_that_was_emptied_before_the_device_heard_of_it_leaves_nothing_to_tell() -> None:
    """Its next owner fills the same row in the same upload, and the order of writes to one place means nothing."""
    changes = PendingChanges()
    for row in (3, 4, 3):
        if row == 3:
            changes.forget(3)
        changes.fill(RowSettings(row=row, num_cached=0, params=SamplingParams(), seed=row, max_k=0))
        changes.append(row, 1, [10 + row, 20 + row])
    told = changes.flush()
    assert [settings.row for settings in told.rows] == [4, 3]
    assert list(zip(told.page_rows, told.page_columns, told.pages, strict=True)) == [
        (4, 1, 14),
        (4, 2, 24),
        (3, 1, 13),
        (3, 2, 23),
    ]
    assert changes.flush() == Changes()


def test_drafts_behind_a_cut_count_nowhere() -> None:
    counts = Counts()
    counts.add(num_drafts=4, num_chosen=3, num_kept=3)  # two stood, the third was refused
    counts.add(num_drafts=4, num_chosen=5, num_kept=2)  # all stood, and a stop came with the second
    assert (counts.cycles, counts.emitted) == (2, 5)
    assert counts.drafted_at == [2, 2, 1, 1]
    assert counts.accepted_at == [2, 2, 0, 0]


def test_a_catch_up_waits_for_what_is_in_flight_only_if_its_length_is_open() -> None:
    """A plain step brings one token, whatever it is; a cycle of drafts brings one or more."""
    llm = engine(TARGET, DRAFTER)
    scheduler = llm.engine.scheduler
    scheduler.control = told = Told()
    llm.engine.add([1, 2, 3], SamplingParams(max_tokens=40))
    for _ in range(4):
        llm.engine.step()
    plain = scheduler.next(drained=True)
    told.k = 4
    caught_up = scheduler.next(drained=False)
    assert plain is not None and isinstance(plain.plan, CyclePlan)
    assert caught_up is not None and isinstance(caught_up.plan, CatchUpPlan)
    (sequence,) = scheduler.admitted
    assert caught_up.plan.starts[0] + caught_up.plan.nums[0] == sequence.num_cached + 1, "the plain step's token too"
    drafting = scheduler.next(drained=False)
    assert drafting is not None and isinstance(drafting.plan, CyclePlan) and drafting.plan.k == 4
    told.k = 0
    assert scheduler.next(drained=False) is not None
    told.k = 4
    assert scheduler.next(drained=False) is None
