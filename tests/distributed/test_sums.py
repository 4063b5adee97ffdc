"""Who gathers: the choice from what was measured, and the same parts whoever does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from distributed.threads import on_ranks
from outpace import EngineConfig
from outpace.distributed import nccl
from outpace.distributed.group import Group
from outpace.distributed.symmetric import agree
from outpace.errors import ConfigError
from outpace.models.parallel import Head
from outpace.models.sums import limit_of, norm_pays, with_sums

CPU = torch.device("cpu")


def rows(*times: tuple[float, float, float]) -> list[dict[str, float]]:
    return [
        {"bytes": 8192 * 4**step, "symmetric_us": s, "gather_us": g, "all_reduce_us": a}
        for step, (s, g, a) in enumerate(times)
    ]


def test_the_exchange_is_used_as_far_as_it_is_clearly_faster() -> None:
    assert limit_of(rows((5, 11, 12), (8, 12, 7), (30, 20, 25))) == 4 * 8192, "an all-reduce has other bits"
    assert limit_of(rows((5, 11, 12), (12, 12.1, 20), (9, 20, 25))) == 8192, "no island beyond a size where it loses"
    assert limit_of(rows((12, 11, 12))) == 0
    assert limit_of([]) == 0


def test_the_norm_is_part_of_the_kernel_if_that_pays() -> None:
    assert norm_pays([{"one_kernel_us": 5, "two_kernels_us": 6}, {"one_kernel_us": 6, "two_kernels_us": 5.5}])
    assert not norm_pays([{"one_kernel_us": 6, "two_kernels_us": 6}])
    assert not norm_pays([])


def test_without_gpus_the_library_gathers_and_it_is_said_why() -> None:
    for asked, why in (("auto", "without GPUs"), ("library", "asks for none")):
        found = on_ranks(2, lambda group, asked=asked: with_sums(group, CPU, asked))
        assert all(group.exchange is None and why in group.sums["why_not_symmetric"] for group in found)


def test_one_rank_that_objects_is_heard_by_all() -> None:
    found = on_ranks(3, lambda group: agree(group, CPU, "no peers" if group.rank == 1 else None))
    assert found == ["rank 1 could not", "no peers", "rank 1 could not"]
    assert on_ranks(2, lambda group: agree(group, CPU, None)) == [None, None]


class Short:
    """Takes parts of up to 8 elements, and gathers as the library does."""

    def __init__(self, group: Group) -> None:
        self.group, self.num_calls = group, 0

    def takes(self, num_elements: int, dtype: torch.dtype) -> bool:
        return num_elements <= 8

    def gather(self, part: Tensor, dtype: torch.dtype, *, joins: bool = False) -> Tensor:
        self.num_calls += 1
        return self.group.by_library(part.sum(0).to(dtype) if joins else part)

    def adds(self, num_rows: int, num_columns: int, dtype: torch.dtype) -> bool:
        return False

    def add_and_norm(self, x: Tensor, part: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def stop(self) -> None: ...


def test_small_parts_go_through_the_exchange_and_large_ones_through_the_library() -> None:
    def run(group: Group) -> tuple[Tensor, int]:
        exchange = Short(group)
        head = Head(4, 10, group=replace(group, exchange=exchange))
        torch.nn.init.ones_(head.weight)
        few, many = head(torch.ones(1, 1, 4)), head(torch.ones(1, 3, 4))
        assert few.shape == (1, 1, 10) and torch.equal(few.expand(1, 3, 10), many)
        return few, exchange.num_calls

    assert [calls for _, calls in on_ranks(2, run)] == [1, 1]


def test_another_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="sums is 'nccl'; it must be"):
        EngineConfig(sums="nccl")  # type: ignore[arg-type]


def test_settings_that_a_started_nccl_would_not_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPACE_NCCL_STARTED", "1 {}")  # another process's
    monkeypatch.setenv("NCCL_PROTO", "LL")
    nccl.apply({"NCCL_PROTO": "LL"})
    assert nccl.num_started() == 0
    nccl.started()
    nccl.apply({"NCCL_PROTO": "LL"})
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    nccl.started()
    assert nccl.num_started() == 2
    with pytest.raises(ConfigError, match="asks for NCCL_PROTO=Simple, but NCCL started in this process with LL"):
        nccl.apply({"NCCL_PROTO": "Simple"})
