"""Prompts, conversations, batches and vocabulary: what goes in comes out, in the promised order."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from outpace.errors import ConfigError
from outpace.training.conversations import Conversation, load_conversations, save_conversations
from outpace.training.dataset import Dataset, split
from outpace.training.prompts import Prompt, read_prompts
from outpace.training.store import AnswerStore
from outpace.training.vocabulary import choose_vocabulary, count_tokens


def conversation(length: int, *spans: tuple[int, int], first: int = 0) -> Conversation:
    return Conversation(tokens=np.arange(first, first + length), spans=spans)


def some(count: int = 200, seed: int = 0) -> list[Conversation]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(12, 300, count)
    return [conversation(int(n), (int(n) // 3, int(n)), first=1000 * place) for place, n in enumerate(lengths)]


def test_every_row_comes_once_an_epoch_and_batches_keep_their_budget() -> None:
    dataset = Dataset(some(), batch_tokens=2048, max_length=256, seed=3)
    firsts: list[int] = []
    for batch in dataset.epoch(0):
        assert batch.tokens_BT.size <= 2048
        firsts += batch.tokens_BT[:, 0].tolist()
        assert batch.assistant_BT[batch.tokens_BT == 0].sum() == 0
    assert sorted(firsts) == [1000 * place for place in range(200)]


def test_order_follows_from_seed_and_epoch_alone_and_resumes_anywhere() -> None:
    def order(seed: int, epoch: int, start: int = 0) -> list[list[int]]:
        dataset = Dataset(some(), batch_tokens=2048, max_length=256, seed=seed)
        return [batch.tokens_BT[:, 0].tolist() for batch in dataset.epoch(epoch, start=start)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    assert order(1, 2, start=5) == order(1, 2)[5:]


def test_little_is_padded() -> None:
    dataset = Dataset(some(2000), batch_tokens=8192, max_length=256, seed=0)
    batches = list(dataset.epoch(0))
    assert sum(batch.num_tokens for batch in batches) > 0.8 * sum(batch.tokens_BT.size for batch in batches)


def test_long_conversations_are_cut_and_hopeless_ones_left_out() -> None:
    rows = [conversation(40, (10, 40)), conversation(40, (39, 40)), conversation(40, (30, 40))]
    dataset = Dataset(rows, batch_tokens=64, max_length=32, seed=0)
    assert [(len(row.tokens), row.spans) for row in dataset.rows] == [(32, ((10, 32),))]
    with pytest.raises(ConfigError, match="none of 1"):
        Dataset(rows[1:2], batch_tokens=64, max_length=32, seed=0)


def test_split_holds_out_and_loses_nothing() -> None:
    training, held = split(some(50), num_held_out=99, seed=1)
    assert len(held) == 5
    assert sorted(int(c.tokens[0]) for c in training + held) == [1000 * place for place in range(50)]


@pytest.mark.parametrize("largest", [300, 70_000])
def test_conversations_survive_the_disk(tmp_path: Path, largest: int) -> None:
    written = [Conversation(tokens=np.array([1, largest, 2]), spans=((0, 1), (2, 3))), conversation(5)]
    save_conversations(tmp_path / "a.safetensors", written)
    read = load_conversations([tmp_path / "a.safetensors"])
    assert [(c.tokens.tolist(), c.spans) for c in read] == [(c.tokens.tolist(), c.spans) for c in written]


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"a\.safetensors"):
        load_conversations([path])


def asked(first: int, end: int) -> list[Prompt]:
    return [Prompt(messages=({"role": "user", "content": f"What is {number}?"},)) for number in range(first, end)]


def test_answers_to_other_prompts_are_not_taken_for_answers_to_these(tmp_path: Path) -> None:
    AnswerStore(tmp_path).add(some(3), prompts=asked(0, 5))
    store = AnswerStore(tmp_path)
    assert store.left(asked(0, 5)) == []
    assert store.left(asked(0, 9)) == asked(5, 9)
    for others in (asked(1, 9), asked(0, 4), [*asked(0, 4), *asked(5, 9)]):
        with pytest.raises(ConfigError, match=r"answers to 5 prompts.*not the first 5 of these"):
            store.left(others)


def test_a_state_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"num_files": "1"}', '{"pages": 3}'):
        (tmp_path / "answers.json").write_text(text)
        with pytest.raises(ConfigError, match=r"answers\.json cannot be read"):
            AnswerStore(tmp_path)


def test_the_store_grows_in_shards_and_remembers_where_it_was(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path, shard_bytes=2000)
    for wave in range(4):
        store.add(some(3, seed=wave), prompts=asked(4 * wave, 4 * wave + 4))
    assert len(store.paths()) > 1
    again = AnswerStore(tmp_path, shard_bytes=2000)
    assert again.num_prompts_done == 16
    assert again.left(asked(0, 20)) == asked(16, 20)
    again.add(some(2, seed=9), prompts=asked(16, 18))
    expected = [c.tokens.tolist() for wave in range(4) for c in some(3, seed=wave)]
    expected += [c.tokens.tolist() for c in some(2, seed=9)]
    assert [c.tokens.tolist() for c in AnswerStore(tmp_path).load()] == expected


LINES = (
    '"a text"',
    '{"prompt": "one", "kind": "k"}',
    '{"turns": ["one", "two", "three"]}',
    '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}',
)


@pytest.mark.parametrize("packed", [False, True])
def test_prompt_files(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("p.jsonl.gz" if packed else "p.jsonl")
    data = "\n".join((*LINES, "")).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    prompts = read_prompts(path)
    assert prompts[0] == Prompt(messages=({"role": "user", "content": "a text"},))
    assert prompts[1].kind == "k"
    assert prompts[2].followups == ("two", "three")
    assert [m["role"] for m in prompts[3].messages] == ["system", "user"]


@pytest.mark.parametrize(
    "line",
    [
        "3",
        "{",
        "[" * 100_000,
        '{"turns": []}',
        '{"prompt": " "}',
        '{"messages": [{"role": "assistant", "content": "x"}]}',
    ],
)
def test_a_bad_prompt_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f'"fine"\n{line}\n')
    with pytest.raises(ConfigError, match=r"line 2.*write a text in quotes"):
        read_prompts(path)


def test_no_prompts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        read_prompts(tmp_path / "p.jsonl")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "missing.jsonl")


def test_vocabulary_is_the_most_frequent_ids_in_ascending_order() -> None:
    counts = count_tokens(
        [Conversation(tokens=np.array([9, 9, 9, 4, 4, 7, 2, 2]), spans=((0, 6),)), conversation(3)], vocab_size=12
    )
    assert counts.tolist() == [0, 0, 0, 0, 2, 0, 0, 1, 0, 3, 0, 0]
    chosen = choose_vocabulary(counts, size=3, always=(11,))
    assert chosen.target_ids_V.tolist() == [4, 9, 11]
    assert chosen.coverage == pytest.approx(5 / 6)


def test_vocabulary_size_follows_coverage() -> None:
    counts = np.zeros(8192, dtype=np.int64)
    counts[:3000] = 1
    assert len(choose_vocabulary(counts, coverage=0.9).target_ids_V) == 3072
    assert len(choose_vocabulary(counts, coverage=1.0, max_size=2048).target_ids_V) == 2048
    with pytest.raises(ConfigError, match="8193"):
        choose_vocabulary(counts, size=8193)
    with pytest.raises(ConfigError, match="no answer token"):
        choose_vocabulary(counts * 0)
