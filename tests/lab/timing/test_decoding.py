"""Decoders: the real loop, from contexts that count as computed, over pages that engines share."""

from __future__ import annotations

import pytest
import torch

from outpace import EngineError
from outpace.lab.limits.kv_room import kv_room
from outpace.lab.shapes.dense import random_models
from outpace.lab.timing.decoding import Decoder, noise_pair
from outpace.speculation.pair import Pair

ROWS, CONTEXT, LONGEST = 4, 40, 400


@pytest.fixture(scope="module")
def pair() -> Pair:
    target, drafter = random_models("tiny", drafter=True, device="cpu", dtype=torch.float32, draft_vocab_size=64)
    return noise_pair(target.model, drafter, num_rows=ROWS, max_context=LONGEST)


def decoder(pair: Pair, k: int, *, auto: bool = False) -> Decoder:
    return Decoder(pair, k=k, auto=auto, num_rows=ROWS, max_context=LONGEST)


def test_rows_decode_behind_a_context_that_counts_as_computed(pair: Pair) -> None:
    ours = decoder(pair, 3)
    ours.simulate([1.0])
    ours.admit(ROWS, CONTEXT, 200)
    before = ours.engine.runner.state.length_R[:ROWS].clone()
    window = ours.run(20)
    state = ours.engine.runner.state
    assert bool((before >= CONTEXT).all())
    assert (window.tokens, window.steps) == (ROWS * 20, 5), "four tokens a cycle"
    assert bool((state.length_R[:ROWS] >= CONTEXT + 20).all())
    assert window.tok_s == pytest.approx(window.tokens / window.seconds)
    reused = [sequence.num_reused for sequence in ours.engine.scheduler._admitted.values()]
    page = pair.cache.page_size
    assert reused == [CONTEXT // page * page] * ROWS


def test_a_window_counts_what_ended_within_it_also_where_a_forward_is_always_in_flight(pair: Pair) -> None:
    """As on a GPU: a forward that ended while another engine ran is no gain."""
    ours = decoder(pair, 3)
    ours.engine.runner.num_ahead = 1
    ours.simulate([1.0])
    ours.admit(ROWS, CONTEXT, 300)
    for _ in range(3):
        window = ours.run(20)
        assert (window.tokens, window.steps) == (ROWS * 20, 5)
    ours.simulate([0.0])
    assert ours.run(16, continued=True).steps == 13, "what was in flight still brings four tokens"
    ours.clear()
    assert ours.num_pages_held == 0


def test_k_0_is_an_engine_without_a_drafter(pair: Pair) -> None:
    plain = decoder(pair, 0)
    plain.simulate([0.9])
    plain.admit(ROWS, CONTEXT, 100)
    window = plain.run(7)
    assert (window.tokens, window.steps) == (ROWS * 7, 7)
    assert plain.describe()["control"] == {"kind": "fixed", "k": 0}
    assert plain.engine.runner.state.boundary_PH.numel() == 0


def test_control_begins_anew_with_every_admission(pair: Pair) -> None:
    ours = decoder(pair, 3, auto=True)
    ours.admit(1, CONTEXT, 200)
    at_first = ours.describe()["control"]
    ours.simulate([0.0])
    ours.run(30)
    assert ours.describe()["control"] != at_first
    ours.admit(1, CONTEXT, 200)
    assert ours.describe()["control"]["acceptance"] == at_first["acceptance"]
    assert ours.engine.control is ours.engine.scheduler.control


def test_decoders_take_turns_over_the_same_pages(pair: Pair) -> None:
    decoders = [decoder(pair, 2), decoder(pair, 0), decoder(pair, 3, auto=True)]
    for ours in decoders:
        ours.admit(2, CONTEXT, 200)
    for _ in range(3):
        windows = [ours.run(10) for ours in decoders]
        assert all(window.tokens >= 20 for window in windows)
    for ours in decoders:
        ours.clear()
        assert ours.num_pages_held == 0
        assert not ours.engine.busy


def test_acceptance_changes_in_mid_run(pair: Pair) -> None:
    ours = decoder(pair, 3)
    ours.simulate([1.0])
    ours.admit(ROWS, CONTEXT, 300)
    assert ours.run(16).steps == 4
    ours.simulate([0.0])
    assert ours.run(16, continued=True).steps == 16


def test_rows_of_a_batch_may_differ(pair: Pair) -> None:
    ours = decoder(pair, 3)
    ours.simulate([1.0, 0.0])
    ours.admit(ROWS, CONTEXT, 300)
    window = ours.run(25)
    assert window.steps == 10, "two rows of four tokens a cycle, two of one"


def test_the_first_token_comes_after_all_of_the_prompt(pair: Pair) -> None:
    ours = decoder(pair, 2)
    assert ours.first_token_s(CONTEXT) > 0.0
    (sequence,) = ours.engine.scheduler._admitted.values()
    assert sequence.num_reused == 0
    assert ours.first_token_s(CONTEXT) > 0.0, "again, and nothing of the last time is reused"
    (sequence,) = ours.engine.scheduler._admitted.values()
    assert sequence.num_reused == 0


def test_the_first_token_behind_a_known_prefix(pair: Pair) -> None:
    ours = decoder(pair, 2)
    page_size = ours.engine.pages.page_size
    for num_tokens, behind in ((5, 2 * page_size), (page_size, page_size), (5, 2 * page_size)):
        assert ours.first_token_s(num_tokens, behind) > 0.0
        (sequence,) = ours.engine.scheduler._admitted.values()
        assert sequence.num_reused == behind


def test_a_request_that_ends_is_no_measurement(pair: Pair) -> None:
    ours = decoder(pair, 0)
    ours.admit(1, CONTEXT, 5)
    with pytest.raises(EngineError, match="max_tokens"):
        ours.run(50)


def test_a_drafter_takes_room_from_the_context(pair: Pair) -> None:
    assert pair.drafter is not None
    room = kv_room(pair.target, pair.drafter)
    assert 0 < room["auto"] < room["plain"]
