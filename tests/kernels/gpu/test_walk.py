"""How the past is cut and walked through: enough programs to fill a GPU, and no split that nobody needs."""

from __future__ import annotations

import pytest

from outpace.kernels.gpu.walk import BLOCK_T, ENOUGH, MAX_SPLITS, MULTIPROCESSORS, tiling_of, walk_of


@pytest.mark.parametrize("num_programs", [1, 8, 24, 64, 128, 199, 200, 256, 512, 1024])
def test_splits_fill_the_gpu_and_no_more(num_programs: int) -> None:
    walk = walk_of(num_programs, 256, 1 << 20, None)
    assert walk.splits & (walk.splits - 1) == 0, "a power of two"
    assert walk.splits <= MAX_SPLITS
    if num_programs >= ENOUGH:
        assert walk.splits == 1
    else:
        assert num_programs * walk.splits <= 4 * MULTIPROCESSORS
        assert walk.splits == MAX_SPLITS or num_programs * walk.splits * 2 > 4 * MULTIPROCESSORS


def test_a_short_table_is_not_cut_into_more_splits_than_it_has_blocks() -> None:
    assert walk_of(8, 256, 4 * BLOCK_T, None).splits == 4
    assert walk_of(8, 256, 1, None).splits == 1
    assert walk_of(8, 256, 1 << 20, 5).splits == 4


def test_two_blocks_are_on_their_way_where_there_is_room() -> None:
    few, many = 2 * MULTIPROCESSORS, 2 * MULTIPROCESSORS + 1
    assert walk_of(few, 256, 1 << 20, None).stages > walk_of(many, 256, 1 << 20, None).stages
    assert walk_of(8, 256, 1 << 20, None).stages == walk_of(few, 256, 1 << 20, None).stages
    assert walk_of(8, 1024, 1 << 20, None).stages == walk_of(many, 256, 1 << 20, None).stages, "long keys leave none"


@pytest.mark.parametrize("num_rows", [1, 3, 4, 16])
@pytest.mark.parametrize("num_tokens", [17, 64, 100, 256, 2048])
@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 8), (64, 4), (8, 1), (9, 3), (32, 32)])
def test_many_tokens_fill_the_gpu_once_and_no_more(num_rows: int, num_tokens: int, heads: int, kv_heads: int) -> None:
    tiling = tiling_of(num_rows, num_tokens, heads, kv_heads, 256, None)
    filled = 1 << (num_tokens - 1).bit_length()
    assert tiling == tiling_of(num_rows, filled, heads, kv_heads, 256, None), "filling up changes nothing"
    programs = num_rows * kv_heads * -(-filled * heads // kv_heads // tiling.queries)
    if tiling.splits == 1:
        assert 2 * programs > MULTIPROCESSORS
    else:
        assert programs * tiling.splits <= MULTIPROCESSORS
        assert tiling.splits == MAX_SPLITS or 2 * programs * tiling.splits > MULTIPROCESSORS


def test_a_long_chunk_is_not_split() -> None:
    """Llama-3.1-8B's shapes: 512 tokens of one row fill a GPU."""
    assert [tiling_of(1, num, 32, 8, 256, None).splits for num in (32, 64, 128, 256, 512, 2048)] == [16, 8, 4, 2, 1, 1]
    assert tiling_of(1, 2048, 32, 8, 256, None).queries == 128
    assert tiling_of(1, 64, 32, 8, 512, None).queries == 64, "longer keys leave less room"
