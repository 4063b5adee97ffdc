"""What top-k, top-p and min-p leave, against the reference; without a GPU Triton's interpreter runs the kernels."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.test_attention import DEVICE
from outpace.config import GREEDY_BELOW
from outpace.kernels.sample import _FIXED_POINT, Sampling, gumbel, truncate
from outpace.types import SamplingKind

pytest.importorskip("triton", reason="the kernels need Triton")
from outpace.kernels.gpu.sample import choose
from outpace.kernels.gpu.truncate import cut

TEMPERATURES = [0.7, 1.0, 0.0, 1.3, 2.0]
TOP_K = [0, 5, 3, 50, 700]
TOP_P = [0.9, 1.0, 0.5, 0.3, 0.95]
MIN_P = [0.0, 0.0, 0.0, 0.2, 0.001]


def settings() -> Sampling:
    return Sampling(
        temperature_B=torch.tensor(TEMPERATURES, device=DEVICE),
        top_k_B=torch.tensor(TOP_K, device=DEVICE),
        top_p_B=torch.tensor(TOP_P, device=DEVICE),
        min_p_B=torch.tensor(MIN_P, device=DEVICE),
        seed_B=torch.arange(len(TOP_K), device=DEVICE),
        kind=SamplingKind.TRUNCATED,
    )


@pytest.mark.parametrize("num_ids", [600, 9000])
def test_the_cut_is_the_references(num_ids: int) -> None:
    B, S = len(TOP_K), 2
    logits = torch.randn(B, S, num_ids, device=DEVICE) * 3
    logits[0, 0, 5:90] = 4.0  # a tie at the edge is kept whole
    logits[1, 1, 3:] = -torch.inf
    given = settings()
    temperature = given.temperature_B.clamp(min=GREEDY_BELOW)[:, None, None]
    expected = truncate(logits / temperature, given)
    found = cut(
        logits,
        given.temperature_B,
        given.top_k_B,
        given.top_p_B,
        greedy_below=GREEDY_BELOW,
        fixed_point=_FIXED_POINT,
    )
    positions = torch.arange(S, device=DEVICE).expand(B, S).contiguous()
    left_out = (*found, given.min_p_B)
    for seed in range(3):
        seeds = torch.arange(B, device=DEVICE) * 100 + seed
        noisy = expected + gumbel(seeds, positions, torch.arange(num_ids, device=DEVICE))
        tokens = torch.where((given.temperature_B == 0)[:, None], logits.argmax(-1), noisy.argmax(-1))
        chosen = choose(
            logits,
            given.temperature_B,
            seeds,
            positions,
            None,
            sampled=True,
            greedy_below=GREEDY_BELOW,
            cut=left_out,
        )
        assert torch.equal(chosen, tokens)
    lowest, peak = found
    bits = (logits / temperature).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    kept = (ordered >= lowest[..., None]) & ((logits / temperature - peak.amax(-1, keepdim=True)).exp() >= min_p())
    rows = given.temperature_B > 0
    assert torch.equal((kept & ~logits.isneginf())[rows], ~expected.isneginf()[rows])


def min_p() -> torch.Tensor:
    return torch.tensor(MIN_P, device=DEVICE)[:, None, None]
