"""How many pages fit, and what is said where they do not."""

from __future__ import annotations

import pytest
import torch

from engine.test_lossless import answers
from engine.tiny import HIDDEN, engine, tiny_drafter, tiny_target
from outpace import ConfigError, EngineConfig, EngineError, SamplingParams
from outpace.engine.memory import bytes_per_page, check_pages, history, num_pages
from outpace.engine.resolve import resolve


def test_pages_take_their_fraction_and_no_more_than_all_rows_can_use() -> None:
    assert num_pages(free=1000, fraction=0.5, page_bytes=10, pages_per_row=8, max_rows=16) == 50
    assert num_pages(free=1000, fraction=0.5, page_bytes=10, pages_per_row=8, max_rows=2) == 17, "and the trash page"


def test_one_full_context_and_the_trash_page_must_fit() -> None:
    assert num_pages(free=90, fraction=1.0, page_bytes=10, pages_per_row=8, max_rows=1) == 9
    with pytest.raises(EngineError, match=r"holds 8 KV pages; one full context needs 9, .* lower max_context"):
        num_pages(free=89, fraction=1.0, page_bytes=10, pages_per_row=8, max_rows=1)


def test_pages_that_are_asked_for_must_be_free() -> None:
    assert check_pages(9, page_bytes=10, free=90) == 9
    with pytest.raises(ConfigError, match="give at most 9, or leave it out"):
        check_pages(10, page_bytes=10, free=99)


def test_what_a_drafter_may_be_shown_again_takes_a_small_part_of_the_memory() -> None:
    target = tiny_target(seed=1)
    drafter = tiny_drafter(target)
    config = EngineConfig(k=4, max_rows=9)
    token = 10 * (3 * HIDDEN * 4 + 8)  # of nine rows and the inert one: three taps in float32, and the token itself
    assert history(drafter, config, 2**40, torch.float32) == (256, (256 + 5) * token)
    assert history(drafter, config, 50 * 45 * token, torch.float32) == (40, 45 * token)
    assert history(drafter, config, 1000, torch.float32) == (1, 6 * token), "drafting cannot resume without any"


def test_pages_are_counted_from_what_that_leaves() -> None:
    target = tiny_target(seed=1)
    drafter = tiny_drafter(target)
    config = EngineConfig(k=4, max_rows=64, max_context=128, page_size=4, memory_fraction=0.5)
    free = 4000 * bytes_per_page(target.model, drafter, 4, torch.float32)
    resolved = resolve(config, target.model, drafter, free)
    _, kept = history(drafter, config, free, torch.float32)
    assert resolved.num_pages == int((free - kept) * 0.5) // bytes_per_page(target.model, drafter, 4, torch.float32)
    assert kept and resolved.history < 256
    assert resolve(config, target.model, None, free).history == 0


def test_what_nobody_drafts_for_is_not_kept() -> None:
    target = tiny_target(seed=1)
    llm = engine(target, tiny_drafter(target), k=0)
    params = SamplingParams(max_tokens=8)
    assert (llm.config.history, llm.engine.runner.state.recent) == (0, None)
    assert answers(llm.generate([[1, 2, 3]], params)) == answers(engine(target).generate([[1, 2, 3]], params))
