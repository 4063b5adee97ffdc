"""How the past is cut and walked through: enough programs to fill a GPU, and no split that nobody needs."""

from __future__ import annotations

import pytest

from outpace.kernels.gpu.walk import BLOCK_T, ENOUGH, MAX_SPLITS, MULTIPROCESSORS, walk_of


@pytest.mark.parametrize("num_programs", [1, 8, 24, 64, 128, 199, 200, 256, 512, 1024])
def test_splits_fill_the_gpu_and_no_more(num_programs: int) -> None:
    walk = walk_of(num_programs, 1 << 20, None)
    assert walk.splits & (walk.splits - 1) == 0, "a power of two"
    assert walk.splits <= MAX_SPLITS
    if num_programs >= ENOUGH:
        assert walk.splits == 1
    else:
        assert num_programs * walk.splits <= 4 * MULTIPROCESSORS
        assert walk.splits == MAX_SPLITS or num_programs * walk.splits * 2 > 4 * MULTIPROCESSORS


def test_a_short_table_is_not_cut_into_more_splits_than_it_has_blocks() -> None:
    assert walk_of(8, 4 * BLOCK_T, None).splits == 4
    assert walk_of(8, 1, None).splits == 1
    assert walk_of(8, 1 << 20, 5).splits == 4


def test_two_blocks_are_on_their_way_where_there_is_room() -> None:
    assert walk_of(2 * MULTIPROCESSORS, 1 << 20, None).stages > walk_of(2 * MULTIPROCESSORS + 1, 1 << 20, None).stages
    assert walk_of(8, 1 << 20, None).stages == walk_of(1024, 1 << 20, None).stages
