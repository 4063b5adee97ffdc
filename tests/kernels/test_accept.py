"""Which drafts stand, counted by hand, and what the rows hold afterwards."""

from __future__ import annotations

import pytest
import torch

from outpace.kernels.accept import Ledger, settle


def ledger(lengths: list[int], max_k: int) -> Ledger:
    """Rows of these lengths and an inert one, before a drafter that reaches 97 positions."""
    num_rows = len(lengths) + 1
    return Ledger(
        length_R=torch.tensor([*lengths, 0]),
        last_token_R=torch.zeros(num_rows, dtype=torch.int64),
        num_pending_R=torch.zeros(num_rows, dtype=torch.int64),
        pending_tokens_RW=torch.zeros((num_rows, 8), dtype=torch.int64),
        max_k_R=torch.tensor([*[max_k] * len(lengths), 0]),
        seed_R=torch.arange(num_rows),
        chance_RK=None,
        max_positions=97,
    )


@pytest.mark.parametrize(("max_k", "emitted"), [(7, [6, 4, 3, 1, 1]), (3, [4, 4, 3, 1, 1]), (0, [1] * 5)])
def test_right_drafts_stand_up_to_the_rows_limit_and_the_drafters(max_k: int, emitted: list[int]) -> None:
    rows = ledger([10, 94, 95, 97, 99], max_k)
    chosen = torch.arange(30).view(5, 6) + 1
    outcome = settle(rows, torch.arange(5), chosen[:, :-1].clone(), chosen)
    assert outcome[:, 0].tolist() == emitted
    assert torch.equal(outcome[:, 1:], chosen)
    assert rows.length_R.tolist() == [
        length + num for length, num in zip([10, 94, 95, 97, 99], emitted, strict=True)
    ] + [0]
    assert rows.last_token_R[:5].tolist() == [int(chosen[row, num - 1]) for row, num in enumerate(emitted)]
    assert rows.num_pending_R[:5].tolist() == emitted
    assert torch.equal(rows.pending_tokens_RW[:5, :6], chosen)


@pytest.mark.parametrize(("wrong", "emitted"), [(0, 1), (1, 2), (4, 5), (5, 6)])
def test_the_first_wrong_draft_refuses_the_rest(wrong: int, emitted: int) -> None:
    chosen = torch.arange(6)[None] + 1
    drafts = chosen[:, :-1].clone()
    drafts[:, wrong : wrong + 1] = 99
    assert int(settle(ledger([10], 7), torch.tensor([0]), drafts, chosen)[0, 0]) == emitted


def test_a_plain_step_emits_one_token_and_leaves_what_is_pending_to_the_drafter() -> None:
    rows = ledger([10, 20], 7)
    outcome = settle(rows, torch.tensor([1, 2, 2]), None, torch.tensor([[5], [6], [6]]))
    assert outcome.tolist() == [[1, 5], [1, 6], [1, 6]]
    assert rows.length_R.tolist() == [10, 21, 0], "the inert row's length stays 0"
    assert rows.last_token_R.tolist() == [0, 5, 6]
    assert not rows.pending_tokens_RW.any()
