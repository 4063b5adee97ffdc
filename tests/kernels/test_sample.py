"""Shared noise samples exactly the processed softmax, and truncation keeps exactly what its definition says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from outpace.kernels.sample import Sampling, choose, gumbel, truncate
from outpace.types import SamplingKind


def sampling(
    num_rows: int = 1,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
) -> Sampling:
    return Sampling(
        temperature_B=torch.full((num_rows,), temperature),
        top_k_B=torch.full((num_rows,), top_k),
        top_p_B=torch.full((num_rows,), top_p),
        min_p_B=torch.full((num_rows,), min_p),
        seed_B=torch.full((num_rows,), seed),
        kind=_kind(temperature, bool(top_k or top_p < 1 or min_p)),
    )


def _kind(temperature: float, truncated: bool) -> SamplingKind:
    if temperature == 0:
        return SamplingKind.GREEDY
    return SamplingKind.TRUNCATED if truncated else SamplingKind.SAMPLED


def reference_probabilities(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Softmax after sorting-based truncation, float64: an implementation that shares nothing with ours."""
    p = (logits.double() / temperature).softmax(-1)
    order = p.argsort(descending=True)
    kept = order[: top_k or len(order)]
    p_kept = p[kept] / p[kept].sum()
    num = int((p_kept.cumsum(0) < top_p - 1e-9).sum()) + 1
    kept = kept[:num]
    kept = kept[p[kept] >= min_p * p.max()]
    result = torch.zeros_like(p)
    result[kept] = p[kept] / p[kept].sum()
    return result


SETTINGS = [
    (1.0, 0, 1.0, 0.0),
    (0.5, 0, 1.0, 0.0),
    (2.0, 0, 1.0, 0.0),
    (1.0, 5, 1.0, 0.0),
    (1.0, 0, 0.7, 0.0),
    (1.5, 0, 1.0, 0.15),
    (0.8, 9, 0.9, 0.05),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), SETTINGS)
def test_samples_follow_the_truncated_softmax(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.randn(13, generator=torch.Generator().manual_seed(5)) * 1.5
    expected = reference_probabilities(logits, temperature, top_k, top_p, min_p)
    num = 40_000
    params = sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=77)
    tokens = choose(logits.expand(1, num, -1), params, torch.arange(num)[None])
    counts = tokens[0].bincount(minlength=13).double()
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible], expected[possible] * num).pvalue > 1e-6


def test_seeds_are_independent_of_each_other() -> None:
    """Tokens under two neighbouring seeds, at the same positions, are uncorrelated: chi-square on pairs."""
    num, size = 40_000, 4
    logits = torch.zeros(1, num, size)
    first, second = (choose(logits, sampling(seed=s), torch.arange(num)[None])[0] for s in (10, 11))
    pairs = (first * size + second).bincount(minlength=size * size).double()
    assert stats.chisquare(pairs).pvalue > 1e-6
    following = (first[:-1] * size + first[1:]).bincount(minlength=size * size).double()
    assert stats.chisquare(following).pvalue > 1e-6


def test_noise_is_gumbel_finite_and_depends_on_every_key() -> None:
    noise = gumbel(torch.tensor([5, 2**62 + 5]), torch.arange(500).expand(2, -1), torch.arange(100))
    assert noise.isfinite().all()
    assert stats.kstest(noise.flatten().double().numpy(), "gumbel_r").pvalue > 1e-6
    assert (noise[0] != noise[1]).float().mean() > 0.999


def test_noise_follows_target_ids_not_places() -> None:
    ids = torch.tensor([7, 3, 90])
    seed, position = torch.tensor([4]), torch.tensor([[2]])
    assert torch.equal(gumbel(seed, position, ids), gumbel(seed, position, torch.arange(100))[..., ids])


def test_greedy_rows_beside_sampled_ones_take_the_argmax() -> None:
    logits = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(1))
    params = sampling(2, temperature=1.0, top_k=5)
    params.temperature_B[0] = 0.0
    tokens = choose(logits, params, torch.arange(3).expand(2, -1))
    assert torch.equal(tokens[0], logits[0].argmax(-1))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-512, 512).map(lambda i: i / 64), min_size=2, max_size=40, unique=True),
    st.integers(0, 45),
    st.floats(0.05, 1.0),
    st.floats(0.0, 0.9),
)
def test_truncation_keeps_what_sorting_keeps(values: list[float], top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.tensor(values, dtype=torch.float32)
    ours = truncate(logits[None, None], sampling(top_k=top_k, top_p=top_p, min_p=min_p))[0, 0].isfinite()
    p = logits.double().softmax(-1)
    order = p.argsort(descending=True)
    mass = (p[order[: top_k or None]] / p[order[: top_k or None]].sum()).cumsum(0)
    if ((mass - top_p).abs() < 1e-5).any() or ((p / p.max() - min_p).abs() < 1e-5).any():
        return  # on an edge float32 and float64 may differ
    assert torch.equal(ours, reference_probabilities(logits, 1.0, top_k, top_p, min_p) > 0)


def test_ties_with_the_last_kept_logit_stay() -> None:
    logits = torch.tensor([[[3.0, 2.0, 2.0, 2.0, 1.0]]])
    assert truncate(logits, sampling(top_k=2))[0, 0].isfinite().tolist() == [True, True, True, True, False]


def test_the_ends_of_the_ranges_mean_what_they_say() -> None:
    """A min-p of 1 leaves the best token, and a top-p of 1 all: those too that are too rare to be summed."""
    logits = torch.tensor([[[0.0, 1.0, -40.0, -60.0]]])
    assert truncate(logits, sampling(min_p=1.0))[0, 0].isfinite().tolist() == [False, True, False, False]
    assert truncate(logits, sampling(top_k=3, top_p=1.0))[0, 0].isfinite().tolist() == [True, True, True, False]
    assert truncate(logits, sampling(top_k=9, top_p=1.0))[0, 0].isfinite().all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_part_of_the_vocabulary_gives_the_token_that_the_whole_gives_where_it_holds_it(temperature: float) -> None:
    """A drafter proposes target ids, under the noise of those ids: else it would be right by chance alone."""
    ids = torch.tensor([3, 7, 8, 20, 41])
    logits = torch.randn(1, 200, 50, generator=torch.Generator().manual_seed(2))
    positions = torch.arange(200)[None]
    whole = torch.full_like(logits, -torch.inf).index_copy_(2, ids, logits[..., ids])
    params = sampling(temperature=temperature, seed=9)
    found = choose(logits[..., ids], params, positions, ids)
    assert torch.equal(found, choose(whole, params, positions))
    assert set(found.flatten().tolist()) == set(ids.tolist())
