"""The demonstration on tiny random models, end to end; only the real models are missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.tiny import OracleDrafter, engine, tiny_target
from lab.ticking import ticking
from outpace import LLM, Chunk, SamplingParams
from outpace.errors import ConfigError, RequestError
from outpace.lab.demo import run as demo
from outpace.lab.demo.lossless import Tape, judge
from outpace.lab.demo.run import Contender, DemoSettings, run_demo
from outpace.lab.timing.answer import Timing, time_answer

PROMPTS = ("one", "another")
ENGINE: dict[str, Any] = {"max_rows": 1, "prefix_reuse": False}


class WordTokenizer:
    """Ids from the letters of a message: enough to ask a tiny model something."""

    chat_template = None

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [1 + ord(c) % 50 for c in messages[-1]["content"]]

    def decode(self, token_ids: object, skip_special: bool = True) -> str:
        return "word"


class Notes:
    def __init__(self) -> None:
        self.begun: list[str] = []
        self.tokens: dict[str, list[int]] = {"plain": [], "speculative": []}
        self.ended: list[str] = []

    def begin(self, prompt: str) -> None:
        self.begun.append(prompt)

    def chunk(self, who: str, chunk: Chunk) -> None:
        self.tokens[who] += chunk.token_ids

    def end(self, who: str, timing: Timing) -> None:
        self.ended.append(who)

    def progress(self, text: str) -> None:
        """Not noted."""


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    """A tiny target with a drafter that is right three times out of four, and a tokenizer that decodes nothing."""
    target = tiny_target(vocab_size=61)
    plain = engine(target, **ENGINE)
    tokenizer = WordTokenizer()
    answers = []
    for prompt in PROMPTS:
        ids = tokenizer.encode_chat([{"role": "user", "content": prompt}])
        answers.append([*ids, *plain.generate([ids], SamplingParams(max_tokens=24))[0].token_ids])
    monkeypatch.setattr("outpace.engine.answer.IncrementalDecoder", Undecoded)
    return engine(replace(target, tokenizer=tokenizer), OracleDrafter(answers, 0.75), **ENGINE)


class Undecoded:
    def __init__(self, tokenizer: object, kept: object = ()) -> None:
        """Texts do not matter here."""

    def push(self, ids: object) -> str:
        return ""

    def finish(self) -> str:
        return ""


def test_the_report(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch)
    notes = Notes()
    report = run_demo(llm, PROMPTS, DemoSettings(max_tokens=24, compare=False), notes)
    assert notes.begun == list(PROMPTS)
    assert notes.ended == ["plain", "speculative"] * 2
    assert notes.tokens["plain"] == notes.tokens["speculative"]
    found = json.loads(json.dumps(report.as_dict()))
    assert found["lossless"] is True
    assert found["losslessness"]["num_equal"] == 2
    assert found["k"] == 4
    assert 1.0 < found["accept_length"] <= 5.0
    assert found["speedup"] == pytest.approx(found["speculative_tok_s"] / found["plain_tok_s"], rel=0.02)
    assert found["speedup"] == pytest.approx(found["accept_length"] / found["break_even_accept_length"], rel=0.02)
    assert found["why"].startswith("Speculation")
    assert found["transformers_tok_s"] is None
    assert set(found["plain_tok_s_by_dtype"]) == {"float32"}
    assert [p["prompt"] for p in found["prompts"]] == list(PROMPTS)
    assert found["machine"]["cores"] >= 1
    phases = found["phases_ms"]
    parts = [phases[name] for name in ("draft", "verify", "accept", "gap")]
    assert min(parts) > 0
    assert phases["cycle"] == pytest.approx(sum(parts), rel=1e-2)


def test_only_contenders_that_the_first_pass_did_not_run_are_warmed_up(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def contender(name: str) -> Contender:
        def answer(ids: Sequence[int]) -> Timing:
            calls.append(name)
            return time_answer(llm, ids, SamplingParams(max_tokens=4))

        return answer

    names = ("another float32", "plain float32", "speculative float32")
    monkeypatch.setattr(demo, "_contenders", lambda *_: {name: contender(name) for name in names})
    run_demo(llm, PROMPTS, DemoSettings(max_tokens=4, num_rounds=1), Notes())
    assert calls == ["another float32", *names * len(PROMPTS)]


def test_without_a_drafter_there_is_nothing_to_show(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="--drafter"):
        run_demo(engine(llm.target, **ENGINE), PROMPTS, DemoSettings(), Notes())


def test_questions_need_a_tokenizer(llm: LLM) -> None:
    mute = engine(replace(llm.target, tokenizer=None), llm.drafter, **ENGINE)
    with pytest.raises(RequestError, match="tokenizer"):
        run_demo(mute, PROMPTS, DemoSettings(), Notes())


def test_a_tape_holds_the_logits_of_every_token(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20)
    plain = engine(llm.target, **ENGINE)
    ours, _ = Tape(plain).record([3, 1, 4], params)
    theirs, timing = Tape(llm).record([3, 1, 4], params)
    for taped in (ours, theirs):
        assert taped.logits_NV.shape == (len(taped.token_ids), 61)
        assert tuple(taped.logits_NV.argmax(-1).tolist()) == taped.token_ids
    assert timing.token_ids == ours.token_ids
    assert judge([(ours, theirs)], exact=True).lossless


def test_a_long_prompt_in_chunks_is_taped_alike(llm: LLM) -> None:
    prompt = [1 + i % 50 for i in range(37)]
    taped, _ = Tape(llm).record(prompt, SamplingParams(max_tokens=8))
    assert tuple(taped.logits_NV.argmax(-1).tolist()) == taped.token_ids


def test_timing_counts_what_came_after_the_first_wait(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch)
    seen: list[Chunk] = []
    timing = time_answer(llm, [3, 1, 4], SamplingParams(max_tokens=20), seen.append)
    assert timing.num_decoded == len(timing.token_ids) - len(seen[0].token_ids) == 19
    assert timing.cycles == len(seen) - 1
    assert timing.accept_length == pytest.approx(seen[-1].stats.accept_length)
    assert timing.tok_s == pytest.approx(timing.accept_length / timing.cycle_s)
