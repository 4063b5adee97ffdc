"""The drafter's paged cache holds what a drafter run over the whole sequence would, whatever happened before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.test_lossless import prompts
from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import LLM, SamplingParams
from outpace.engine.sequence import Sequence
from outpace.kernels.attention import attention, visible
from outpace.models.drafter import Drafter
from outpace.models.registry import LoadedTarget
from outpace.speculation import cycle as module
from outpace.speculation import draft as drafting


def causal(layer: int, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor) -> Tensor:
    S = q_BSHD.shape[1]
    return attention(q_BSHD, k_BSHD, v_BSHD, visible(torch.zeros(1, dtype=torch.int64), S, S, None))


def draft_from_scratch(target: LoadedTarget, drafter: Drafter, tokens: list[int], k: int) -> list[int]:
    """What the drafter proposes after `tokens`, every step recomputed over the whole sequence."""
    known = torch.tensor([tokens])
    positions = torch.arange(len(tokens))[None]
    _, features = target.model(known, positions, causal, drafter.wiring.aux_boundaries)
    hidden = drafter.fuse(features)[:, :-1]
    drafts: list[int] = []
    for _ in range(k):
        fed = torch.tensor([[*tokens[1:], *drafts]])
        next_hidden, out = drafter(fed, hidden, torch.arange(fed.shape[1])[None], causal)
        drafts.append(int(drafter.target_ids_V[drafter.logits(out[:, -1:]).argmax()]))
        hidden = torch.cat((hidden, next_hidden[:, -1:]), dim=1)
    return drafts


def watch(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[list[int], list[int]]]]:
    """Records every row of every cycle; what comes back lists the tokens that were chosen so far and the drafts made.

    Of those in flight at that time the host does not know yet, so it is to be asked when all requests are over.
    """
    seen: list[tuple[Sequence, int, list[int]]] = []
    original = module.draft

    def recording(pair, state, rows_B, table_BP, sampling, k):  # type: ignore[no-untyped-def]
        drafts = original(pair, state, rows_B, table_BP, sampling, k)
        by_row = {s.row: s for s in llm.engine.scheduler._admitted.values()}
        for row, made in zip(rows_B.tolist(), drafts.tolist(), strict=True):
            if row in by_row:  # neither inert nor of one that ended while this was in flight
                sequence, num_chosen = by_row[row], int(state.length_R[row]) + 1
                usable = len(sequence.request.prompt_ids) + sequence.max_tokens - num_chosen  # pages are reserved
                seen.append((sequence, num_chosen, made[: max(0, usable)]))
        return drafts

    monkeypatch.setattr(module, "draft", recording)
    return lambda: [(s.tokens[:num], made) for s, num, made in seen if num <= len(s.tokens)]


@pytest.mark.parametrize("many", [drafting.MANY, 0])
@pytest.mark.parametrize("options", [{}, {"prefill_chunk": 3}, {"num_pages": 24}, {"k": 1}, {"page_size": 1}])
def test_drafts_equal_those_from_scratch(options: dict[str, int], many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ragged rows; then prompts that reuse pages of finished answers; then tight pages, so that rows are preempted.

    Once more where pending places are many, of which all but the newest are only stored.
    """
    monkeypatch.setattr(drafting, "MANY", many)
    target = tiny_target(seed=50)
    drafter = tiny_drafter(target, seed=51)
    llm = engine(target, drafter, max_rows=4, **options)
    seen = watch(llm, monkeypatch)
    batch = prompts(6, seed=52, longest=14)
    params = SamplingParams(max_tokens=14)
    first = llm.generate(batch, params)
    again = [list(result.prompt_ids + result.token_ids) + [7, 8] for result in first]
    second = llm.generate(again, params)
    if "num_pages" not in options:
        assert any(result.stats.reused for result in second)
    assert len(seen()) > 30
    k = llm.config.k
    for tokens, drafts in seen():
        assert drafts == draft_from_scratch(target, drafter, tokens, k)[: len(drafts)], f"after {len(tokens)} tokens"


def test_plain_requests_leave_no_trap_for_drafting_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that a plain request filled hold nothing for the drafter: they are not reused where it would draft."""
    target = tiny_target(seed=53)
    drafter = tiny_drafter(target, seed=54)
    llm = engine(target, drafter)
    seen = watch(llm, monkeypatch)
    prompt = prompts(1, seed=55)[0] * 3
    llm.generate([prompt], SamplingParams(max_tokens=8, max_k=0))
    drafting = llm.generate([prompt], SamplingParams(max_tokens=8))
    plain = llm.generate([prompt], SamplingParams(max_tokens=8, max_k=0))
    assert drafting[0].stats.reused == 0 and plain[0].stats.reused > 0
    assert drafting[0].token_ids == plain[0].token_ids
    for tokens, drafts in seen():
        assert drafts == draft_from_scratch(target, drafter, tokens, 4)[: len(drafts)]


@pytest.mark.parametrize("longer", [0, 9])
def test_what_lies_past_the_drafters_limit_is_reused_and_costs_the_drafter_nothing(
    longer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation outgrows its drafter: further turns reuse their past as plain ones do."""
    target = tiny_target(seed=56)
    drafter = tiny_drafter(target, seed=57, max_positions=32)
    forwards: list[int] = []
    drafter.register_forward_hook(lambda *_: forwards.append(1))
    monkeypatch.setattr(drafter, "store", lambda *_, **__: forwards.append(1))
    llm = engine(target, drafter)
    prompt = (prompts(1, seed=58)[0] * 32)[: 32 + longer]
    first = llm.generate([prompt], SamplingParams(max_tokens=20))[0]
    again = [*prompt, *first.token_ids, 7]
    second = llm.generate([again], SamplingParams(max_tokens=8))[0]
    assert second.stats.reused == (len(again) - 1 - 1) // 4 * 4
    assert not forwards
    assert [first.token_ids, second.token_ids] == [
        engine(target).generate([ids], SamplingParams(max_tokens=num))[0].token_ids
        for ids, num in ((prompt, 20), (again, 8))
    ]


def test_a_prompt_one_token_short_of_the_drafters_limit_is_drafted_for() -> None:
    target = tiny_target(seed=56)
    drafter = tiny_drafter(target, seed=57, max_positions=32)
    prompt = (prompts(1, seed=58)[0] * 32)[:31]
    found = engine(target, drafter).generate([prompt], SamplingParams(max_tokens=8))[0]
    assert found.stats.drafted == 1
