"""On a GPU, whichever graph a batch runs: what is written is what plain decoding writes, and as often.

The drafter knows most of what follows, so drafts are accepted in runs of every length.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from engine.reference import serve
from engine.test_logprobs import mixed, same
from engine.test_lossless import prompts, sampled
from engine.test_processing import asking
from engine.ties import part_at_ties
from engine.tiny import VOCAB
from models.checkpoints import make_checkpoint
from outpace import LLM, SamplingParams
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import save_drafter
from outpace.models.registry import load_target
from outpace.models.source import locate
from server.chain import make_chain, make_chain_drafter

pytestmark = pytest.mark.gpu

NUMS = (1, 2, 4, 7, 16, 20, 32, 40)
"""Requests: each number is padded to a bucket of its own."""
Models = tuple[str, str]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A target whose tokens mostly follow one another, and a drafter that is wrong behind every seventh."""
    target, drafter = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("drafter")
    follows = make_chain(target, ["abcdefghijklm", "nopqrstuvw"])
    make_chain_drafter(target, drafter, follows, range(0, 320, 7))
    return str(target), str(drafter)


@pytest.fixture(scope="module")
def random(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A target whose logits nearly tie now and then, and a drafter that is right by chance."""
    target, drafter = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("drafter")
    make_checkpoint(target, "llama", hidden_size=512, intermediate_size=1024, num_attention_heads=8,
                    num_key_value_heads=2, head_dim=64, vocab_size=VOCAB, max_position_embeddings=1024)  # fmt: skip
    loaded = load_target(locate(str(target)), dtype=torch.float32, device="cpu")
    save_drafter(Drafter.create(loaded.model, draft_ids=None), drafter)
    return str(target), str(drafter)


def llm(models: Models, k: int, dtype: str = "float32") -> LLM:
    """k = 0 has no drafter."""
    return LLM(models[0], drafter=models[1] if k else None, device="cuda", dtype=dtype, k=k or 1, control="fixed",
               max_rows=40, max_context=512, num_pages=400, capture_s=0.0)  # fmt: skip


def requests(num: int) -> list[tuple[list[list[int]], list[SamplingParams]]]:
    """Greedy, sampled and truncated, with rules, with log-probabilities: batches that need different graphs."""
    batch = prompts(num, seed=num)
    greedy = [SamplingParams(max_tokens=40)] * num
    hot = [SamplingParams(max_tokens=40, temperature=0.8, seed=index) for index in range(num)]
    return [(batch, params) for params in (greedy, hot, sampled(num), asking(num, num), mixed(num, num))]


@pytest.mark.parametrize("k", [1, 3, 4, 7, 15])
def test_float32_is_equal_token_for_token(chain: Models, k: int) -> None:
    plain, speculative = llm(chain, 0), llm(chain, k)
    accepted = drafted = 0
    for num in NUMS:
        for batch, params in requests(num):
            found = serve(speculative, batch, params)
            assert same(found, serve(plain, batch, params))
        for result in speculative.generate(prompts(num, seed=num), SamplingParams(max_tokens=40)):
            accepted, drafted = accepted + sum(result.stats.accepted_at), drafted + sum(result.stats.drafted_at)
    assert 0.2 < accepted / drafted < 0.98, "runs of every length"
    graphs = speculative.describe()["graphs"]
    assert graphs["eager"] == [] and graphs["captured"] >= 5 * len(NUMS)


@pytest.mark.parametrize("k", [3, 7])
def test_bf16_parts_at_ties_alone(random: Models, k: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Up to 64 rows of tokens a verify has the bits of plain steps; beyond, and where splits change, it may not."""
    plain, speculative = llm(random, 0, "bfloat16"), llm(random, k, "bfloat16")
    for num in (1, 8, 40):
        batch, params = prompts(num, seed=num), [SamplingParams(max_tokens=200, logprobs=20)] * num
        gaps, rounding = part_at_ties(serve(plain, batch, params), serve(speculative, batch, params))
        with capsys.disabled():
            print(f"bf16, {num} rows, k {k}: {len(gaps)} part, gaps {gaps[:5]}, rounding elsewhere {rounding:.4f}")
        assert all(gap <= rounding for gap in gaps)
        assert num > 1 or not gaps, "one row has the bits of plain steps"


@pytest.mark.parametrize("num", [1, 40])
def test_samples_are_as_frequent_as_the_target_says(chain: Models, num: int) -> None:
    """The second of two sampled tokens, after the likeliest first one, against the target's own chances."""
    speculative, prompt, heat = llm(chain, 3), prompts(1, seed=5)[0], 1.5
    seeds = range(400 if num == 1 else 4000)
    drawn = [
        result.token_ids
        for first in seeds[::num]
        for result in speculative.generate(
            [prompt] * num, [SamplingParams(max_tokens=2, temperature=heat, seed=first + i) for i in range(num)]
        )
    ]
    likeliest = Counter(tokens[0] for tokens in drawn).most_common(1)[0][0]
    seen = Counter(tokens[1] for tokens in drawn if tokens[0] == likeliest)
    (told,) = serve(speculative, [[*prompt, likeliest]], [SamplingParams(max_tokens=1, logprobs=20)])
    ids = [token for token, _ in told.logprobs[0].top]
    chances = torch.tensor([value for _, value in told.logprobs[0].top]).div(heat).exp()
    counts = torch.tensor([seen[token] for token in ids])
    if num == 1:  # too few for the rare ones
        counts, chances = (torch.stack((x[0], x[1:].sum())) for x in (counts, chances))
    expected = chances / chances.sum() * counts.sum()
    assert expected.min() > 4
    assert chisquare(counts.numpy(), expected.double().numpy(), sum_check=False).pvalue > 1e-6
