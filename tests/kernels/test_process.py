"""Processing k + 1 places at once gives, to the bit, what k + 1 plain steps give; neutral rows keep their bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from outpace.config import SamplingParams
from outpace.kernels.logprobs import tops_of
from outpace.kernels.process import Rules, process
from outpace.kernels.sample import Sampling, choose
from outpace.speculation.extras import Extras
from outpace.types import Past, RowSettings, SamplingKind

V = 23
WANTED = (
    SamplingParams(repetition_penalty=1.7, frequency_penalty=0.3, presence_penalty=0.2),
    SamplingParams(repetition_penalty=0.4, frequency_penalty=-1.1, presence_penalty=-0.9, logit_bias={0: 1.5, 7: -3}),
    SamplingParams(bad_words=[[4], [5, 4], [3, 5, 4], [1, 2], [2, 2], list(range(16))], min_tokens=9),
    SamplingParams(),
)
PROMPT = tuple(range(15))
DRAFTS = torch.tensor([[4, 4, 9, 4], [7, 0, 7, 2], [15, 2, 2, 2], [1, 1, 1, 1]])


def settings(row: int, params: SamplingParams, output: tuple[int, ...] = ()) -> RowSettings:
    past = Past(prompt_ids=PROMPT, output_ids=output, stop_ids=(20, 21)) if params.processed else None
    return RowSettings(row=row, num_cached=0, params=params, seed=0, max_k=0, past=past)


def extras(outputs: list[tuple[int, ...]]) -> Extras:
    made = Extras.allocate(len(WANTED) + 1, V, torch.device("cpu"))
    made.fill([settings(row, p, output) for row, (p, output) in enumerate(zip(WANTED, outputs, strict=True))])
    return made


def logits(seed: int = 0, num_places: int = 5) -> Tensor:
    return torch.randn(len(WANTED), num_places, V, generator=torch.Generator().manual_seed(seed)) * 3


def rules(made: Extras) -> Rules:
    return made.rules(torch.arange(len(WANTED)))


@pytest.mark.parametrize("outputs", [[()] * 4, [(4, 4), (7,), (1, 3), (2,)], [(9,) * 5, (0, 7, 2), (3, 5), ()]])
def test_a_verify_is_so_many_steps(outputs: list[tuple[int, ...]]) -> None:
    x_BSV = logits()
    start = torch.tensor([len(PROMPT) + len(output) for output in outputs])
    position_BS = start[:, None] + torch.arange(5)
    together = process(x_BSV, rules(extras(outputs)), position_BS, DRAFTS)
    for place in range(5):
        behind = [(*output, *DRAFTS[row, :place].tolist()) for row, output in enumerate(outputs)]
        alone = process(
            x_BSV[:, place : place + 1], rules(extras(behind)), position_BS[:, place : place + 1], DRAFTS[:, :0]
        )
        assert torch.equal(alone[:, 0], together[:, place])
        drafting = process(
            x_BSV[:, place : place + 1],
            rules(extras(outputs)),
            position_BS[:, place : place + 1],
            DRAFTS[:, :place],
        )
        assert torch.equal(drafting[:, 0], together[:, place])


def test_neutral_rows_keep_their_bits_and_logits_are_not_written_to() -> None:
    x_BSV = logits(1)
    x_BSV[3, :, ::5] = -0.0
    before = x_BSV.clone()
    made = process(x_BSV, rules(extras([()] * 4)), torch.full((4, 5), 15), DRAFTS)
    assert torch.equal(x_BSV.view(torch.int32), before.view(torch.int32))
    assert torch.equal(made[3].view(torch.int32), x_BSV[3].view(torch.int32))
    assert not torch.equal(made[0], x_BSV[0])


def test_a_reused_row_starts_neutral() -> None:
    made = extras([(1, 2), (3,), (4, 5), ()])
    made.fill([settings(row, WANTED[3]) for row in range(4)])
    x_BSV = logits(2)
    assert torch.equal(process(x_BSV, rules(made), torch.full((4, 5), 15), DRAFTS), x_BSV)


def test_what_is_emitted_is_what_a_row_is_filled_with_later() -> None:
    """Counting run by run ends where filling a row with all of it does; the inert row stays as it was."""
    outputs: list[tuple[int, ...]] = [(), (), (), ()]
    made = extras(outputs)
    generator = torch.Generator().manual_seed(3)
    rows_B = torch.tensor([0, 1, 4, 2, 4])
    for _ in range(8):
        num_B = torch.randint(0, 6, (5,), generator=generator)
        tokens_BS = torch.randint(0, V, (5, 5), generator=generator)
        made.add(rows_B, num_B, tokens_BS)
        for place, row in enumerate(rows_B.tolist()):
            if row < 3:
                outputs[row] += tuple(tokens_BS[place, : num_B[place]].tolist())
    expected = extras(outputs)
    for name in ("counts_RV", "recent_RT"):
        assert torch.equal(getattr(made, name)[[0, 1, 2, 4]], getattr(expected, name)[[0, 1, 2, 4]]), name


def test_a_smaller_vocabulary_is_processed_by_target_ids() -> None:
    """A drafter that knows some ids proposes the best of them after the target's own processing."""
    ids = torch.tensor([2, 4, 7, 9, 20])
    made = rules(extras([()] * 4))
    zeros = torch.zeros(4)
    sampling = Sampling(zeros, zeros.long(), zeros + 1, zeros, zeros.long(), SamplingKind.GREEDY, made)
    x_BSV = logits(4, 1)
    x_BSV[2, :, 20] = 50.0  # it would end the answer, which is too early for that row
    position = torch.full((4, 1), 15)
    found = choose(x_BSV[..., ids], sampling, position, ids, drafts_BK=DRAFTS)
    whole = process(x_BSV, made, position, DRAFTS)[..., ids]
    assert torch.equal(found, ids[whole.argmax(-1)])
    plain = choose(x_BSV[..., ids], replace(sampling, rules=None), position, ids)
    assert not torch.equal(found, plain)


@pytest.mark.parametrize("num", [0, 1, 20])
def test_log_probabilities_do_not_depend_on_what_is_beside_them(num: int) -> None:
    x_BSV = logits(5)
    tokens_BS = torch.randint(0, V, (4, 5), generator=torch.Generator().manual_seed(6))
    tops = tops_of(x_BSV, tokens_BS, num)
    assert tops.ids_BSN.shape == tops.values_BSN.shape == (4, 5, num)
    for place in range(5):
        alone = tops_of(x_BSV[2:3, place : place + 1], tokens_BS[2:3, place : place + 1], num)
        assert torch.equal(alone.own_BS[0, 0], tops.own_BS[2, place])
        assert torch.equal(alone.values_BSN[0, 0], tops.values_BSN[2, place])
        assert torch.equal(alone.ids_BSN[0, 0], tops.ids_BSN[2, place])
    torch.testing.assert_close(
        tops.own_BS, x_BSV.double().log_softmax(-1).gather(-1, tokens_BS[..., None])[..., 0].float()
    )


def test_there_may_be_fewer_ids_than_alternatives() -> None:
    tops = tops_of(torch.randn(1, 2, 7), torch.zeros(1, 2, dtype=torch.int64), 20)
    assert tops.ids_BSN.shape == (1, 2, 7)
