"""No page is lost: after any mix of finished, stopped, aborted and preempted requests, every page is back."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tiny import VOCAB, engine, tiny_drafter, tiny_target
from outpace import LLM, SamplingParams
from outpace.engine.pages import Pages


def assert_all_back(llm: LLM) -> None:
    pages = llm.engine.pages
    assert not llm.engine.busy
    assert pages.num_free + pages.num_cached == pages.num_usable
    taken = pages.take(pages.num_usable)
    assert taken is not None and sorted(taken) == list(range(1, pages.num_usable + 1))
    pages.release(taken)
    assert (pages.num_free, pages.num_cached) == (pages.num_usable, 0)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.integers(0, 1), st.integers(1, 40), st.integers(1, 20), st.sampled_from([0, 1, None])
        ),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("abort"), st.integers(0, 20)),
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(ACTIONS, st.integers(20, 60), st.integers(1, 5), st.integers(0, 5))
def test_every_page_comes_back(actions: list[tuple[object, ...]], num_pages: int, max_rows: int, k: int) -> None:
    target = _TARGET
    llm = engine(target, _DRAFTER if k else None, num_pages=num_pages, max_rows=max_rows, k=k, page_size=4)
    alive: list[int] = []
    for action in actions:
        match action:
            case ("add", int(which), int(length), int(max_tokens), max_k):
                prompt = _PROMPTS[which][:length]  # two texts: requests begin alike or are the same
                params = SamplingParams(max_tokens=max_tokens, max_k=max_k, stop_token_ids=(5,))  # type: ignore[arg-type]
                alive.append(llm.engine.add(prompt, params))
            case ("step", int(times)):
                for _ in range(times):
                    llm.engine.step()
            case ("abort", int(index)) if alive:
                llm.engine.abort(alive[index % len(alive)])
    while llm.engine.busy:
        llm.engine.step()
    assert_all_back(llm)


_PROMPTS = torch.randint(0, VOCAB, (2, 40), generator=torch.Generator().manual_seed(0)).tolist()
_TARGET = tiny_target(seed=30)
_DRAFTER = tiny_drafter(_TARGET)


def test_a_prefix_is_found_by_whole_pages_and_leaves_one_token_over() -> None:
    pages = Pages(20, 4)
    held = pages.take(3)
    assert held is not None
    pages.remember(list(range(12)), held, 12, 0)
    pages.release(held)
    assert pages.match(list(range(12)), needs_drafter=False) == held[:2]
    assert pages.match([*range(12), 99], needs_drafter=False) == held
    assert pages.match([*range(4), 99, *range(5, 12)], needs_drafter=False) == held[:1]
    assert pages.match(list(range(12)), needs_drafter=True) == []


def test_a_page_filled_for_the_drafter_replaces_one_that_is_not() -> None:
    pages = Pages(20, 4)
    plain, drafted = pages.take(2), pages.take(2)
    assert plain is not None and drafted is not None
    pages.remember(list(range(8)), plain, 8, 0)
    pages.remember(list(range(8)), drafted, 8, 5)
    assert pages.match([*range(8), 9], needs_drafter=True) == drafted[:1]
    assert pages.match([*range(8), 9], needs_drafter=False) == [drafted[0], plain[1]]


def test_the_least_recently_used_leaf_goes_first_and_held_pages_never() -> None:
    pages = Pages(7, 1)
    for tokens in ((1, 2), (3, 4), (5, 6)):
        held = pages.take(2)
        assert held is not None
        pages.remember(tokens, held, 2, 2)
        pages.release(held)
    in_use = pages.match([1, 2, 0], needs_drafter=False)
    assert pages.take(2) is not None
    assert pages.match([3, 0], needs_drafter=False) == []
    assert len(pages.match([5, 6, 0], needs_drafter=False)) == 2
    assert pages.take(1) is None
    assert len(in_use) == 2


def test_a_prefix_that_was_computed_once_more_counts_as_used() -> None:
    """Its tokens came by in pages of another sequence, which the tree has no use for."""
    pages = Pages(4, 1)
    for token in (1, 2, 1):
        held = pages.take(1)
        assert held is not None
        pages.remember([token], held, 1, 1)
        pages.release(held)
    assert pages.take(2) is not None
    assert len(pages.match([1, 0], needs_drafter=True)) == 1
    assert pages.match([2, 0], needs_drafter=True) == []


def test_pages_that_cannot_be_had_cost_nobody_a_prefix() -> None:
    """A request that waits for pages asks before every forward; what others may reuse must outlive that."""
    pages = Pages(11, 1)
    kept, in_use = pages.take(4), pages.take(3)
    assert kept is not None and in_use is not None
    pages.remember([1, 2, 3, 4], kept, 4, 4)
    pages.release(kept)
    assert pages.take(8) is None
    assert pages.num_cached == 4
    held = pages.match([1, 2, 0], needs_drafter=False)
    assert pages.take(6) is None, "two of the four are in use again"
    assert pages.num_cached == 4
    pages.release(held)
    assert pages.take(7) is not None
    assert pages.num_cached == 0


def test_equal_prompts_side_by_side_leave_no_page_stuck() -> None:
    llm = engine(tiny_target(), num_pages=9, max_rows=2, page_size=4)
    for first in range(12):
        prompt = [first] * 9
        llm.generate([prompt, prompt], [SamplingParams(max_tokens=2), SamplingParams(max_tokens=5)])
    assert_all_back(llm)


def test_a_page_released_twice_is_a_bug_that_shows() -> None:
    pages = Pages(3, 4)
    held = pages.take(1)
    assert held is not None
    pages.release(held)
    with pytest.raises(AssertionError, match="released twice"):
        pages.release(held)


ARRIVALS = st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.booleans(), st.integers(0, 9)))


@pytest.mark.parametrize("mixed", [False, True])
@settings(max_examples=100, deadline=None)
@given(ARRIVALS)
def test_pages_are_had_where_nobody_holds_them_and_no_attempt_is_made_in_vain(
    mixed: bool, arrivals: list[tuple[list[int], bool, int]]
) -> None:
    """Mixed are sequences with and without the drafter's entries, whose pages then replace each other in the tree."""
    pages = Pages(12, 2)
    alive: list[list[int]] = []
    for tokens, filled, leaves in arrivals:
        if leaves < len(alive):
            pages.release(alive.pop(leaves))
        filled = filled and mixed
        reused = pages.match(tokens, needs_drafter=filled)
        needed = -(-len(tokens) // 2) - len(reused)
        num_spare = pages.num_usable - len({*reused, *(page for held in alive for page in held)})
        num_cached = pages.num_cached
        assert pages.take(num_spare + 1) is None
        assert pages.num_cached == num_cached
        taken = pages.take(needed)
        assert mixed or (taken is None) == (needed > num_spare)
        if taken is None:
            pages.release(reused)
            continue
        alive.append(reused + taken)
        pages.remember(tokens, alive[-1], len(tokens), len(tokens) if filled else 0)
    for held in alive:
        pages.release(held)
    assert pages.take(pages.num_usable) is not None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=20), st.integers(4, 20))
def test_the_tree_holds_what_was_computed(prompts: list[list[int]], num_pages: int) -> None:
    """Every page that a match returns was filled with exactly those tokens behind exactly that prefix."""
    pages = Pages(num_pages, 2)
    content: dict[int, tuple[int, ...]] = {}
    for tokens in prompts:
        reused = pages.match(tokens, needs_drafter=False)
        for index, page in enumerate(reused):
            assert content[page] == tuple(tokens[: 2 * (index + 1)])
        taken = pages.take(-(-len(tokens) // 2) - len(reused))
        if taken is None:
            pages.release(reused)
            continue
        mine = reused + taken
        assert max(Counter(mine).values()) == 1
        for index, page in enumerate(mine[: len(tokens) // 2]):
            content[page] = tuple(tokens[: 2 * (index + 1)])
        pages.remember(tokens, mine, len(tokens), len(tokens))
        pages.release(mine)
    assert pages.num_free + pages.num_cached == pages.num_usable
