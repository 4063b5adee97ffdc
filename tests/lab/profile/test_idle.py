from __future__ import annotations

import pytest

from outpace import EngineError
from outpace.lab.profile.idle import idle_of
from outpace.lab.profile.wall import Ran


def ran(name: str, began: float, ended: float) -> Ran:
    return Ran(name=name, began=began, ended=ended)


def test_gaps_within_and_between_cycles_are_told_apart() -> None:
    kernels = [
        ran("_multiply", 0.0, 10.0),
        ran("_settle", 12.0, 20.0),  # 2 within
        ran("gather", 21.0, 22.0),  # 1 between, and what runs there ends nothing
        ran("_places", 26.0, 30.0),  # 4 between
        ran("_multiply", 30.0, 38.0),
        ran("_settle", 40.0, 50.0),  # 2 within
    ]
    idle = idle_of(reversed(kernels))
    assert idle.device == pytest.approx(9 / 50)
    assert idle.between_cycles == pytest.approx(5 / 50)
    assert idle.num_cycles == 2


def test_kernels_that_overlap_leave_no_gap() -> None:
    kernels = [
        ran("_settle", 0.0, 10.0),
        ran("_multiply", 5.0, 30.0),
        ran("join", 6.0, 8.0),
        ran("_settle", 29.0, 31.0),
    ]
    idle = idle_of(kernels)
    assert idle.device == idle.between_cycles == 0.0


@pytest.mark.parametrize("kernels", [[], [ran("_settle", 0.0, 1.0)], [ran("_multiply", 0.0, 1.0)] * 3])
def test_a_trace_without_two_cycles_says_nothing(kernels: list[Ran]) -> None:
    with pytest.raises(EngineError, match="whole cycles"):
        idle_of(kernels)
