"""The statistics of comparisons, held by simulations with fixed seeds: what a verdict promises is what it keeps."""

from __future__ import annotations

import math
import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from fingerprint import smi
from lab.simulated import Machine
from outpace.fingerprint.nvidia import THROTTLES
from outpace.lab.intervals.signed_ranks import fewest, locate
from outpace.lab.paired.blocks import Block, Run
from outpace.lab.paired.guard import UNWANTED, Gpu, State, read_state, throttled
from outpace.lab.paired.verdict import MIN_BLOCKS, Verdict, judge

NUM_TRIALS = 1000
BLOCKS = 24
MARGIN = 0.02


@cache
def verdicts(num_trials: int = NUM_TRIALS, num_blocks: int = BLOCKS, **machine: Any) -> list[Verdict]:
    return [judge(Machine(seed=seed, **machine).blocks(num_blocks), MARGIN) for seed in range(num_trials)]


def shares(found: list[Verdict]) -> dict[str, float]:
    return {kind: number / len(found) for kind, number in Counter(verdict.kind for verdict in found).items()}


def test_two_copies_are_equivalent_and_a_slowed_one_is_slower() -> None:
    """In at least 95% of 1,000 comparisons under noise, drift and outliers."""
    assert shares(verdicts())["equivalent"] >= 0.95
    assert shares(verdicts(true_ratio=0.95))["slower"] >= 0.95
    assert shares(verdicts(num_trials=200, true_ratio=1.06))["faster"] >= 0.95


def test_without_a_difference_faster_and_slower_are_rare() -> None:
    """Where the noise is too large for equivalence, so that nothing hides behind it."""
    found = shares(verdicts(noise=0.05))
    allowed = 0.05 + 2.0 * (0.05 * 0.95 / NUM_TRIALS) ** 0.5  # at most 5% by `test_the_interval_is…`; here, as counted
    assert found.get("faster", 0.0) + found.get("slower", 0.0) <= allowed
    assert found["inconclusive"] > 0.9


@pytest.mark.parametrize("machine", [{}, {"noise": 0.05}, {"true_ratio": 0.95}, {"outliers": 0.15}])
def test_the_interval_holds_the_truth_as_often_as_it_says(machine: dict[str, Any]) -> None:
    truth = machine.get("true_ratio", 1.0)
    found = verdicts(**machine)
    held = sum(v.ratio is not None and v.ratio.low <= truth <= v.ratio.high for v in found)  # type: ignore[operator]
    assert held / len(found) >= 0.94, "0.95, less two standard errors of 1,000 trials"
    control = sum(v.control is not None and v.control.low <= 1.0 <= v.control.high for v in found)  # type: ignore[operator]
    assert control / len(found) >= 0.98


def test_as_many_more_blocks_as_it_says_settle_it() -> None:
    settled = []
    for seed in range(600):
        machine = {"noise": 0.04, "outliers": 0.0}
        first = judge(Machine(seed=seed, **machine).blocks(10), MARGIN)
        if first.kind != "inconclusive" or first.more_blocks is None or first.more_blocks > 300:
            continue
        assert first.ratio is not None
        again = Machine(seed=10_000 + seed, true_ratio=first.ratio.value, **machine)
        settled.append(judge(again.blocks(10 + first.more_blocks), MARGIN).kind != "inconclusive")
        if len(settled) == 200:
            break
    assert len(settled) == 200
    assert np.mean(settled) >= 0.75, "80% is promised if the difference is the one that was seen"


def test_drift_that_fools_aabb_does_not_fool_these_blocks() -> None:
    for seed in range(20):
        blocks = Machine(seed=seed, noise=0.002, wander=0.0, outliers=0.0, drift=-0.30).blocks(8)
        logs = [math.log(run.tok_s) for block in blocks for run in block.runs]  # as they ran; all are equally fast
        half = len(logs) // 2
        assert np.mean(logs[half:]) - np.mean(logs[:half]) == pytest.approx(-0.15, abs=0.01), "first A, then B"
        in_block = [np.mean(logs[i + 3 : i + 6]) - np.mean(logs[i : i + 3]) for i in range(0, len(logs), 6)]
        assert locate(in_block, 0.95).high < 0.0, "A A A B B B in each block says slower, with confidence"
        assert judge(blocks, MARGIN).kind == "equivalent"


def test_the_order_of_blocks() -> None:
    blocks = Machine(seed=0).blocks(3)
    assert ["".join(run.role for run in block.runs) for block in blocks] == ["ABA'A'BA", "BA'AAA'B", "A'ABBAA'"]


def test_a_biased_measurement_concludes_nothing() -> None:
    found = verdicts(num_trials=50, bias=0.05, true_ratio=0.9, outliers=0.0)
    assert shares(found) == {"inconclusive": 1.0}
    assert all("control failed" in verdict.reasons[0] and verdict.more_blocks is None for verdict in found)


def test_few_blocks_conclude_nothing() -> None:
    found = judge(Machine(seed=0, true_ratio=0.5).blocks(MIN_BLOCKS - 1), MARGIN)
    assert found.kind == "inconclusive" and found.more_blocks == 1
    assert judge(Machine(seed=0, true_ratio=0.5).blocks(MIN_BLOCKS), MARGIN).kind == "slower"
    assert judge([], MARGIN).reasons == ("no block counts: every one was excluded",)


def test_a_certain_but_small_difference_is_equivalent() -> None:
    found = judge(Machine(seed=0, true_ratio=1.01, noise=0.0005, outliers=0.0).blocks(BLOCKS), MARGIN)
    assert found.ratio is not None and found.ratio.low is not None and found.ratio.low > 1.0
    assert found.kind == "equivalent"


def test_doubts_forbid_a_conclusion() -> None:
    found = judge(Machine(seed=0, true_ratio=0.5).blocks(BLOCKS), MARGIN, doubts=["the GPU was on fire"])
    assert found.kind == "inconclusive" and found.reasons == ("the GPU was on fire",)


@pytest.mark.parametrize("num", [6, 9, 15, 40])
def test_the_interval_is_what_inverting_scipys_test_gives(num: int) -> None:
    """A value lies in the interval exactly when the signed rank test does not reject it."""
    values = np.random.default_rng(num).normal(0.3, 1.0, num)
    found = locate(list(values), 0.95)
    for inside in (found.low + 1e-9, found.high - 1e-9):
        assert scipy.stats.wilcoxon(values - inside, method="exact").pvalue > 0.05
    for outside in (found.low - 1e-9, found.high + 1e-9):
        assert scipy.stats.wilcoxon(values - outside, method="exact").pvalue <= 0.05


def test_many_values_and_few() -> None:
    assert fewest(0.95) == 6 and fewest(0.99) == 8
    assert locate([1.0] * 5, 0.95).low == -math.inf
    values = list(np.random.default_rng(0).normal(0.0, 1.0, 201))
    exact, approximate = locate(values[:200], 0.95), locate(values, 0.95)
    assert approximate.high - approximate.low == pytest.approx(exact.high - exact.low, rel=0.03)


def gpu(*reasons: str) -> Gpu:
    return Gpu(clock_mhz=1980.0, throttle_reasons=reasons, temperature_c=60.0, power_w=600.0)


def test_throttling() -> None:
    fine, hot = gpu("power cap"), gpu("power cap", "hardware thermal slowdown")
    assert throttled([State(gpus=(fine,))] * 6) is None
    assert throttled([State(gpus=(fine, hot))]) == "GPU 1 was throttled: hardware thermal slowdown"
    assert throttled([State(cpu_throttled=5), State(cpu_throttled=6)]) == "the processor was throttled by heat"
    assert throttled([State(cpu_throttled=5)] * 2) is None
    unknown = Gpu(clock_mhz=None, throttle_reasons=None, temperature_c=None, power_w=None)
    assert throttled([State(gpus=(unknown,))]) is None
    assert set(THROTTLES.values()) >= UNWANTED


@pytest.mark.parametrize("refuses", ["", "clocks_throttle_reasons"])
def test_what_nvidia_smi_says_under_the_old_name_and_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    listed = "1980 MHz, 0x0000000000000041, 41, 88.52 W\n[N/A], [N/A], 50, [Not Supported]\n"
    old = f"{refuses}.active" if refuses else ""
    place = smi.install(tmp_path, gpus=listed, refuses=old)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    state = read_state()
    assert state.gpus == (
        Gpu(
            clock_mhz=1980.0,
            throttle_reasons=("idle", "hardware thermal slowdown"),
            temperature_c=41.0,
            power_w=88.52,
        ),
        Gpu(clock_mhz=None, throttle_reasons=None, temperature_c=50.0, power_w=None),
    )
    assert throttled([state]) == "GPU 0 was throttled: hardware thermal slowdown"


def test_a_block_that_failed_has_no_part() -> None:
    blocks = Machine(seed=0).blocks(BLOCKS)
    broken = Block(index=99, runs=(Run(role="A", tok_s=0.0),), excluded="a request failed: HTTP 500")
    found = judge([*blocks, broken], MARGIN)
    assert found.num_excluded == 1 and found.num_blocks == BLOCKS
    assert found.ratio == judge(blocks, MARGIN).ratio
