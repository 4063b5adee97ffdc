"""Answers written through the engine: the tokens it emitted, turn after turn, and nothing else."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outpace import SamplingParams
from outpace.engine.results import RequestStats, Result
from outpace.errors import ConfigError
from outpace.training.answers import AnswerConfig, AnswerStats, answer, invent_prompts
from outpace.training.conversations import Conversation
from outpace.training.prompts import Prompt
from outpace.training.store import AnswerStore
from outpace.training.writing import Quota, write_answers
from training.learnable import END, LetterTokenizer, engine, learnable_target

STATS = RequestStats(cycles=1, emitted=1, drafted_at=(), accepted_at=(), reused=0)


def prompt(text: str, *followups: str) -> Prompt:
    return Prompt(messages=({"role": "user", "content": text},), followups=followups, kind="test")


class ScriptedLLM:
    """Answers with what it is told, by the number of the call."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.prompts, self.params = list(answers), [], []  # type: ignore[var-annotated]
        self.tokenizer = LetterTokenizer()
        self.showed: list[bool] = []

    def generate(
        self, prompts: list[list[int]], params: list[SamplingParams], *, progress: bool = False
    ) -> list[Result]:
        self.showed.append(progress)
        self.prompts += prompts
        self.params += params
        return [self._result(ids) for ids in prompts]

    def _result(self, prompt_ids: list[int]) -> Result:
        text = self.answers.pop(0)
        ids = self.tokenizer.encode(text)
        return Result(
            prompt_ids=tuple(prompt_ids),
            token_ids=tuple(ids),
            text=self.tokenizer.decode(ids),
            finish_reason="stop" if ids[-1] == END else "length",
            stats=STATS,
        )


def collect(
    llm: Any, prompts: list[Prompt], config: AnswerConfig, **options: Any
) -> tuple[list[Conversation], AnswerStats]:
    stats = AnswerStats()
    waves = list(answer(llm, prompts, config, stats, **options))
    assert sum(wave.num_prompts for wave in waves) <= len(prompts)
    return [c for wave in waves for c in wave.conversations], stats


def text(conversation: Conversation) -> list[str]:
    return [LetterTokenizer().decode(conversation.tokens[first:end].tolist()) for first, end in conversation.spans]


def test_turns_of_one_conversation_become_one_row() -> None:
    llm = ScriptedLLM("one.\x02", "two.\x02", "cut")
    rows, stats = collect(llm, [prompt("hello", "and then?", "why?")], AnswerConfig(wave=4))
    assert [text(row) for row in rows] == [["one.", "two.", "cut"]]
    assert rows[0].tokens.tolist() == LetterTokenizer().encode(
        "\x01hello\x02\x03one.\x02\x01and then?\x02\x03two.\x02\x01why?\x02\x03cut"
    )
    assert (stats.answers, stats.ended, stats.tokens) == (3, 2, 13)


def test_a_turn_that_was_cut_has_no_further_turn() -> None:
    rows, stats = collect(ScriptedLLM("never ends"), [prompt("hello", "and then?")], AnswerConfig(wave=4))
    assert [text(row) for row in rows] == [["never ends"]]
    assert stats.answers == 1


def test_loops_end_after_two_blocks() -> None:
    rows, stats = collect(ScriptedLLM("well, " + "again and " * 8), [prompt("hello")], AnswerConfig(wave=4))
    assert text(rows[0])[0].strip() == "well, again and again and"
    assert stats.looped == 1


def test_half_of_the_answers_are_greedy_and_every_seed_differs() -> None:
    llm = ScriptedLLM(*["x\x02"] * 400)
    collect(llm, [prompt("hello")] * 400, AnswerConfig(wave=100))
    temperatures = np.array([p.temperature for p in llm.params])
    assert 150 < (temperatures == 0).sum() < 250
    assert ((temperatures == 0) | ((temperatures >= 0.7) & (temperatures <= 1.0))).all()
    assert len({p.seed for p in llm.params}) == 400


def test_long_prompts_are_skipped_and_counted() -> None:
    config = AnswerConfig(wave=4, max_prompt=10)
    rows, stats = collect(ScriptedLLM("x\x02"), [prompt("a very long prompt"), prompt("short")], config)
    assert len(rows) == 1
    assert stats.skipped == 1


def test_no_wave_begins_after_the_deadline() -> None:
    llm = ScriptedLLM(*["x\x02"] * 9)
    rows, stats = collect(llm, [prompt("hello", "more")] * 9, AnswerConfig(wave=3), deadline=time.monotonic())
    assert stats.answers == 3
    assert len(rows) == 3, "what waits for a further turn is kept as it is"


def test_tokens_are_the_engines_own() -> None:
    config = AnswerConfig(max_tokens=12, wave=8, greedy_share=1.0)
    rows, _ = collect(engine(), [prompt("abc"), prompt("xyz")], config)
    ids = [LetterTokenizer().encode_chat([{"role": "user", "content": c}]) for c in ("abc", "xyz")]
    plain = engine().generate(ids, SamplingParams(max_tokens=12))
    assert sorted(row.tokens.tolist() for row in rows) == sorted(list(r.prompt_ids + r.token_ids) for r in plain)


def test_invented_prompts_go_on_from_the_head_of_a_user_turn() -> None:
    llm = ScriptedLLM("what is a cat?\x02", "what is a cat?\x02", "endless talk", "no\x02", "tell me a story.\x02")
    prompts = invent_prompts(llm, 5)  # type: ignore[arg-type]
    assert [p.messages[0]["content"] for p in prompts] == ["what is a cat?", "tell me a story."]
    assert llm.prompts[0] == LetterTokenizer().encode("\x01")
    assert all(p.temperature == 1.0 for p in llm.params)


def test_a_model_without_a_tokenizer_is_refused() -> None:
    llm = engine()
    llm.target = replace(learnable_target(), tokenizer=None)
    with pytest.raises(ConfigError, match="tokenizer"):
        invent_prompts(llm, 1)


def test_the_prompts_of_the_file_come_first_and_invented_ones_once(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = []
    config = AnswerConfig(wave=2)
    given = [prompt(text) for text in ("one", "two", "three")]
    asked = [LetterTokenizer().encode_chat(list(p.messages)) for p in given]

    llm = ScriptedLLM("a\x02", "b\x02", "c\x02", "what is a cat?\x02", "tell me a story.\x02", "x\x02", "y\x02")
    write_answers(llm, given, AnswerStore(tmp_path), config, records.append, num_invented=2)  # type: ignore[arg-type]
    assert llm.prompts[:3] == asked
    assert [r["event"] for r in records] == ["answers", "answers", "invented", "answers"]
    store = AnswerStore(tmp_path)
    assert (store.num_prompts_done, store.num_invented) == (3, 2)

    again = ScriptedLLM()
    write_answers(again, given, store, config, records.append, num_invented=2)  # type: ignore[arg-type]
    assert again.prompts == []


def test_no_prompts_are_invented_while_the_files_are_left(tmp_path: Path) -> None:
    llm, store = ScriptedLLM("a\x02"), AnswerStore(tmp_path)
    quota = Quota(minutes=0.0)
    given = [prompt("one"), prompt("two")]
    write_answers(llm, given, store, AnswerConfig(wave=1), print, num_invented=2, quota=quota)  # type: ignore[arg-type]
    assert (store.num_prompts_done, store.num_invented) == (1, 0)
    with pytest.raises(ConfigError, match="not the first 1"):
        write_answers(llm, [prompt("other")], store, AnswerConfig(), print)  # type: ignore[arg-type]


@pytest.mark.parametrize("progress", [False, True])
def test_how_far_a_wave_is_is_shown_where_it_is_asked_for(tmp_path: Path, progress: bool) -> None:
    llm = ScriptedLLM("a\x02", "b\x02")
    given = [prompt("one"), prompt("two")]
    store = AnswerStore(tmp_path)
    write_answers(llm, given, store, AnswerConfig(wave=1), lambda _: None, progress=progress)  # type: ignore[arg-type]
    assert llm.showed == [progress] * 2
