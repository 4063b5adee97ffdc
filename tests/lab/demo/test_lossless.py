from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.lab.demo.lossless import Taped, judge

VOCAB = 8


def taped(tokens: Sequence[int], noise: float = 0.0, gap: float = 1.0) -> Taped:
    """Logits whose best is the token at each place, `gap` above the next; `noise` moves one other logit."""
    logits = torch.zeros(len(tokens), VOCAB)
    for place, token in enumerate(tokens):
        logits[place, token] = gap
        logits[place, (token + 4) % VOCAB] -= noise
    return Taped(token_ids=tuple(tokens), logits_NV=logits)


def test_equal_answers_are_lossless() -> None:
    verdict = judge([(taped([1, 2, 3]), taped([1, 2, 3], noise=0.25))], exact=True)
    assert verdict.lossless
    assert verdict.equal_up_to_rounding
    assert (verdict.num_equal, verdict.num_tokens_equal) == (1, 3)
    assert verdict.max_logit_difference == 0.25


def test_float32_allows_no_difference() -> None:
    pair = (taped([1, 2], gap=1e-6), taped([1, 3], noise=1.0, gap=1e-6))
    assert not judge([pair], exact=True).equal_up_to_rounding
    assert judge([pair], exact=False).equal_up_to_rounding


def test_a_near_tie_is_excused_by_rounding_seen_elsewhere() -> None:
    plain, speculative = taped([1, 2, 3], gap=0.2), taped([1, 2, 0], noise=0.25, gap=0.2)
    verdict = judge([(plain, speculative)], exact=False)
    assert verdict.equal_up_to_rounding
    assert not verdict.lossless, "equal up to rounding is not equal"
    assert verdict.largest_gap == verdict.differences[0].gap
    (difference,) = verdict.differences
    assert (difference.position, difference.plain_token, difference.speculative_token) == (2, 3, 0)
    assert difference.gap is not None
    assert abs(difference.gap - 0.2) < 1e-6


def test_a_clear_choice_is_not_excused() -> None:
    plain, speculative = taped([1, 2, 3], gap=0.3), taped([1, 2, 0], noise=0.25, gap=0.3)
    assert not judge([(plain, speculative)], exact=False).equal_up_to_rounding


def test_a_wrong_verify_does_not_excuse_itself() -> None:
    """Its logits differ wildly where it went wrong, and only there: that place is not counted as rounding."""
    plain, speculative = taped([1, 2, 3]), taped([1, 2, 0])
    speculative.logits_NV[2] = 100 * torch.eye(VOCAB)[0]
    verdict = judge([(plain, speculative)], exact=False)
    assert verdict.max_logit_difference == 0.0
    assert not verdict.equal_up_to_rounding


def test_an_answer_that_ends_early_is_a_difference() -> None:
    verdict = judge([(taped([1, 2, 3]), taped([1, 2], noise=5.0))], exact=False)
    assert not verdict.equal_up_to_rounding
    assert (verdict.differences[0].position, verdict.differences[0].gap) == (2, None)


def test_rounding_is_taken_over_all_prompts() -> None:
    near = (taped([1, 2], gap=0.2), taped([1, 3], gap=0.2))
    noisy = (taped([4, 5]), taped([4, 5], noise=0.5))
    assert not judge([near], exact=False).equal_up_to_rounding
    assert judge([near, noisy], exact=False).equal_up_to_rounding
