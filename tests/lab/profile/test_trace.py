"""Traces taken apart: every part gets the time that its kernels were given, and the parts add up to the clock."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outpace
from lab.traces import CAT, GEMM, INDEX, Trace
from outpace import EngineError
from outpace.lab.profile.parts import OTHER, part_of
from outpace.lab.profile.trace import take_apart
from outpace.lab.profile.wall import Ran, to_the_innermost, to_the_oldest

KERNELS = Path(outpace.__file__).parent / "kernels" / "gpu"


@pytest.mark.parametrize("early", [0.0, 0.5])
@pytest.mark.parametrize("gap", [0.0, 0.25])
def test_every_part_gets_its_kernels_time(early: float, gap: float) -> None:
    trace, k, layers = Trace(early=early), 3, 2
    for _ in range(4):
        trace.cycle(k, layers, gap=gap)
    found = take_apart(trace.rows, k)
    assert found.num_cycles == 3 and found.num_left_out == 0, "nothing is known of what came before the first"
    expected = {
        ("gaps", "copies"): 2.0,
        ("gaps", "launch gaps"): 8.0,
        ("draft", "small operations"): 2.0,
        ("draft", "bookkeeping"): k * 2.0,
        ("draft", "attention"): k * 11.0,
        ("draft", "norms"): k * 9.0,
        ("draft", "linear layers"): k * 105.0,
        ("draft", "head"): k * 50.0,
        ("draft", "sampling"): k * 5.0,
        ("draft", "launch gaps"): k * 2 * gap,
        ("verify", "small operations"): 2.0,
        ("verify", "bookkeeping"): 3.0,
        ("verify", "attention"): 1.0 + layers * 10.0,
        ("verify", "norms"): 3.0 + layers * 6.0,
        ("verify", "linear layers"): layers * 105.0,
        ("verify", "head"): 90.0,
        ("verify", "fusion"): 12.0,
        ("verify", "launch gaps"): (1 + layers) * gap,
        ("accept", "sampling"): 5.0,
        ("accept", "bookkeeping"): 2.0,
        ("accept", "small operations"): 2.0,
    }
    assert {key: time for key, time in found.time.items() if time} == pytest.approx(
        {key: time for key, time in expected.items() if time}
    )
    assert sum(found.time.values()) == pytest.approx((trace.now - 100.0) / 4), "parts add up to the cycle"
    assert found.count["verify", "linear layers"] == 4 * layers
    assert not found.unknown


def test_a_plain_step_has_no_draft() -> None:
    trace = Trace(early=0.5)
    for _ in range(3):
        trace.cycle(0)
    found = take_apart(trace.rows, 0)
    assert {phase for phase, _ in found.time} == {"gaps", "verify", "accept"}
    assert found.time["verify", "head"] == pytest.approx(90.0)
    assert ("verify", "fusion") not in found.time


def test_cycles_of_another_shape_are_left_out_and_counted() -> None:
    trace = Trace()
    for k in (2, 2, 0, 2, 0):
        trace.cycle(k)
    found = take_apart(trace.rows, 2)
    assert (found.num_cycles, found.num_left_out) == (2, 2)


def test_an_unknown_kernel_is_other_and_named() -> None:
    trace = Trace()
    for _ in range(3):
        trace.cycle(1)
        trace.run("a_kernel_of_tomorrow", 5.0)  # behind the outcome's copy: the next cycle's
    found = take_apart(trace.rows, 1)
    assert found.unknown == {"a_kernel_of_tomorrow": pytest.approx(5.0)}
    assert sum(time for (_, part), time in found.time.items() if part == OTHER) == pytest.approx(5.0)


@pytest.mark.parametrize("rows", [[], [Ran("_settle", 0.0, 1.0)], [Ran("_multiply", 0.0, 1.0)] * 9])
def test_a_trace_without_a_whole_cycle_says_so(rows: list[Ran]) -> None:
    with pytest.raises(EngineError, match="no whole cycle of 2 drafts"):
        take_apart(rows, 2)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        (GEMM, "linear layers"),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "linear layers"),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>(...)", "linear layers"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-reduce"),
        (INDEX, "small operations"),
        (CAT, "small operations"),
        ("Memset (Device)", "copies"),
        ("_multiply_of_tomorrow", "other"),
        ("void flash_fwd_kernel<...>", "other"),
        ("", "other"),
    ],
)
def test_names_of_others(name: str, part: str) -> None:
    assert part_of(name) == part


def test_every_kernel_of_ours_has_a_part() -> None:
    launched = {
        name
        for path in KERNELS.glob("*.py")
        for name in re.findall(r"^\s+(\w+)\[(?:\(|grid)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(launched) > 20 and "join" in launched
    assert not [name for name in launched if part_of(name) == OTHER], "name the part of a new kernel in parts.py"


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1))
def test_shares_of_overlapping_rows_add_up(pairs: list[tuple[int, int]]) -> None:
    rows = [Ran("x", began, began + length) for began, length in sorted(pairs)]
    shares = list(to_the_oldest(rows, 0.0))
    assert sum(waited + own for waited, own in shares) == max(row.ended for row in rows)
    busy = len({moment for row in rows for moment in range(int(row.began), int(row.ended))})
    assert sum(own for _, own in shares) == busy, "each instant in which something ran, once"


def test_an_instant_is_the_innermost_calls() -> None:
    rows = [
        Ran("linear", 1, 4),
        Ran("norm", 5, 6),
        Ran("attention", 0, 7),
        Ran("forward", 0, 10),
        Ran("forward", 12, 13),
    ]
    assert to_the_innermost(rows) == {"forward": 4, "attention": 3, "linear": 3, "norm": 1}
