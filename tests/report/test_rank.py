"""A rank of a mixture of experts in a report: a line of `benchmarks/mixture.py`, drawn and told."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from outpace.errors import ConfigError
from outpace.lab.report.files import read
from outpace.lab.report.page import page
from outpace.lab.report.rank_line import Rank
from outpace.lab.report.sentences import CANNOT, leads


def timed(ms: float, over: float) -> dict[str, Any]:
    spread = {"median": ms, "p5": ms, "p95": ms}
    return {"ms": spread, "fraction_of_limit": 0.4, "over_plain": {"median": over, "low": over - 0.01, "high": over}}


def part(ms: float, limit_ms: float, stacks: bool = True) -> dict[str, Any]:
    return {"ms": ms, "limit_ms": limit_ms, "stacks": stacks}


LINE: dict[str, Any] = {
    "benchmark": "mixture",
    "settings": {"shape": "kimi-k2.5-tp8", "context": 1024, "expert_reuse": 0, "rounds": 8},
    "rates": {"copy_gb_s": 4270.0},
    "layers": {"all": 61, "with_experts": 60},
    "cells": [
        {"k": 0, "limit_ms": 2.0, "graph": timed(4.0, 1.0), "eager": timed(60.0, 1.0)},
        {"k": 2, "limit_ms": 3.0, "graph": timed(5.2, 1.3), "eager": timed(61.0, 1.02)},
    ],
    "experts_alone": [
        {"tokens": 8, "experts_touched": 59.5, "mb_a_layer": 184.3, "us_a_layer": 61.0, "share_of_copy_rate": 0.706}
    ],
    "parts": {
        "0": {"attention": part(2.5, 0.7), "of it: products": part(1.5, 0.6, False), "experts": part(1.5, 1.3)},
        "2": {"attention": part(2.7, 0.7), "of it: products": part(1.6, 0.6, False), "experts": part(2.5, 2.3)},
    },
    "extrapolation": {
        "note": "not measured",
        "draft_ms": 0.3,
        "rows": [
            {"sum_us": us, "k": 2, "plain_tok_s": 180.5, "verify_over_plain": 1.2, "cycle_ms": 7.0,
             "break_even_accept_length": even}
            for us, even in ((8.0, 1.31), (15.0, 1.42), (25.0, 1.53))
        ],
    },
    "machine": {"cpu": "a processor"},
}  # fmt: skip


def reported(tmp_path: Path, **changes: Any) -> str:
    """The page of the line with some of its fields changed."""
    path = tmp_path / "mixture.json"
    path.write_text(json.dumps(LINE | changes))
    return page(read([path]))


def test_a_line_is_a_rank(tmp_path: Path) -> None:
    path = tmp_path / "mixture.json"
    path.write_text(json.dumps(LINE))
    (source,) = read([path])
    assert isinstance(source.result, Rank)
    (lead,) = leads([source])
    assert lead.sentences == (
        "On one rank of kimi-k2.5-tp8 a verify of 3 tokens takes 1.30 plain steps, where the bytes that it "
        "reads would take 1.50. With all ranks, and 15 µs for a sum over them, 2 drafts would pay above 1.42 tokens a "
        "cycle, by arithmetic.",
    )


def test_bars_are_of_the_parts_that_stack_and_of_their_bytes(tmp_path: Path) -> None:
    drawn = re.findall(r"<title>([^<]*ms)</title>", reported(tmp_path))
    assert drawn == [
        "plain step, attention: 2.500 ms",
        "plain step, experts: 1.500 ms",
        "its bytes, attention: 0.700 ms",
        "its bytes, experts: 1.300 ms",
        "verify of 3, attention: 2.700 ms",
        "verify of 3, experts: 2.500 ms",
        "its bytes, attention: 0.700 ms",
        "its bytes, experts: 2.300 ms",
    ]


def test_tables_hold_forwards_experts_and_all_ranks(tmp_path: Path) -> None:
    text = re.sub(r"<[^>]*>", " ", reported(tmp_path))
    for figures in (
        "verify of 3 5.200 ms 61.000 ms 3.000 ms 40% 1.300 1.290 … 1.300",
        "8 59.5 184.3 61.0 71%",
        "25 µs 2 180.5 tok/s 1.200 7.00 ms 1.53",
        "not measured; a draft takes 0.3 ms",
        "61 layers, 60 of them with experts",
        "cpu a processor",
    ):
        assert figures in re.sub(r"\s+", " ", text), figures
    assert "Lossy" not in text and CANNOT not in text


def test_what_was_not_measured_is_left_empty(tmp_path: Path) -> None:
    """On a CPU there are no graphs; one round has no interval; nothing need be taken apart."""
    cells = deepcopy(LINE["cells"])
    for cell in cells:
        cell["graph"] = None
        cell["eager"]["over_plain"] |= {"low": None, "high": None}
    text = re.sub(r"<[^>]*>", " ", reported(tmp_path, cells=cells, parts={}))
    assert "verify of 3 61.000 ms 3.000 ms 40% 1.020 Experts" in re.sub(r"\s+", " ", text)


def test_shared_experts_are_said_to_be_lossy(tmp_path: Path) -> None:
    assert "Lossy: 4 experts of a drafted token" in reported(tmp_path, settings=LINE["settings"] | {"expert_reuse": 4})


def test_the_plain_step_is_the_one_without_drafts(tmp_path: Path) -> None:
    """Wherever it stands, and taken apart or not; one that read nothing is beside nothing."""
    plain, verify = LINE["cells"]
    told = "takes 1.30 plain steps, where the bytes that it reads would take 1.50."
    assert told in reported(tmp_path, cells=[verify, plain])
    assert told in reported(tmp_path, parts={"2": LINE["parts"]["2"]})
    assert told not in reported(tmp_path, cells=[verify])
    assert "plain steps" not in reported(tmp_path, cells=[plain | {"limit_ms": 0.0}, verify])


@pytest.mark.parametrize(
    "broken", [{"benchmark": "other"}, {"cells": [{"k": 0}]}, {"parts": {"x": {}}}, {"layers": 3}, {"rates": None}]
)
def test_a_broken_line_is_named(tmp_path: Path, broken: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"mixture.json is a broken result: .*; measure again"):
        reported(tmp_path, **broken)
