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
from outpace.lab.demo.contenders import Contender
from outpace.lab.demo.lossless import Tape, judge
from outpace.lab.demo.pace import Pace
from outpace.lab.demo.run import DemoSettings, run_demo
from outpace.lab.timing import others
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
        self.places: list[str] = []
        self.stages: list[str] = []
        self.warned: list[str] = []

    def begin(self, prompt: str, place: str) -> None:
        self.begun.append(prompt)
        self.places.append(place)

    def chunk(self, who: str, chunk: Chunk) -> None:
        self.tokens[who] += chunk.token_ids

    def end(self, who: str, timing: Timing) -> None:
        self.ended.append(who)

    def progress(self, text: str) -> None:
        stage = text.partition(":")[0]
        if stage not in self.stages[-1:]:
            self.stages.append(stage)

    def warn(self, text: str) -> None:
        self.warned.append(text)


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
    assert found["verdict"] == "too few to tell" and found["why"].startswith("There are too few prompts to tell")
    assert found["rounds"] == 2 and found["rounds_spread"] >= 1.0
    assert found["transformers_tok_s"] is None
    assert set(found["plain_tok_s_by_dtype"]) == {"float32"}
    assert [p["prompt"] for p in found["prompts"]] == list(PROMPTS)
    assert found["machine"]["cores"] >= 1
    phases = found["phases_ms"]
    parts = [phases[name] for name in ("draft", "verify", "accept", "gap")]
    assert min(parts) > 0
    assert phases["cycle"] == pytest.approx(sum(parts), rel=1e-2)


EACH_S = 10.0


class Slow(Pace):
    """A clock on which every answer takes as long, whatever this machine does."""

    def __init__(self, limit_s: float) -> None:
        self.now = 0.0
        super().__init__(limit_s, lambda: self.now)

    def saw(self, who: str, seconds: float) -> None:
        self.now += EACH_S
        super().saw(who, EACH_S)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else runs."""
    nothing = others.Taken(cores=0.0, of=2, own=2)
    monkeypatch.setattr(others, "taken_now", lambda seconds: nothing)
    monkeypatch.setattr(others, "taken", lambda before, after: nothing)


@pytest.fixture
def calls(llm: LLM, monkeypatch: pytest.MonkeyPatch, quiet: None) -> list[str]:
    """What answered, of those that are timed; one extra contender, on a clock of ten seconds an answer."""
    found: list[str] = []

    def contender(name: str, params: SamplingParams) -> Contender:
        def answer(ids: Sequence[int]) -> Timing:
            found.append(name)
            return time_answer(llm, ids, params)

        return answer

    names = iter(("plain float32", "speculative float32"))
    monkeypatch.setattr(demo, "answering", lambda llm, params: contender(next(names), params))
    monkeypatch.setattr(demo, "extras", lambda plain: {"another": lambda params: contender("another", params)})
    monkeypatch.setattr(demo, "Pace", Slow)
    return found


PAIR = ["plain float32", "speculative float32"]
ALL = [*PAIR, "another"]


def test_with_time_enough_everything_is_run_and_the_order_turns_around(llm: LLM, calls: list[str]) -> None:
    """The other two were warmed up by the first pass."""
    notes = Notes()
    report = run_demo(llm, PROMPTS, DemoSettings(max_tokens=8, time_limit=1000.0), notes)
    assert calls == ["another", *ALL, *ALL[::-1], *ALL[::-1], *ALL]
    assert not notes.warned and not report.left_out
    assert report.seconds == (4 + 1 + 12) * EACH_S
    assert notes.places == ["1 of 2", "2 of 2, about 2 min left"]
    assert notes.stages == [
        "loading and warming up another",
        "timing round 1 of 2, prompt 1 of 2, about 2 min left",
        "timing round 1 of 2, prompt 2 of 2, about 90 s left",
        "timing round 2 of 2, prompt 1 of 2, about 60 s left",
        "timing round 2 of 2, prompt 2 of 2, about 30 s left",
        "",
    ]


@pytest.mark.parametrize(
    ("limit_s", "run", "left_out"),
    [
        (160.0, ["another", *ALL, *ALL[::-1]], ["1 of 2 rounds were run"]),
        (110.0, ["another", *ALL, *ALL[::-1]], ["1 of 2 rounds were run"]),
        (109.0, [*PAIR, *PAIR[::-1]], ["another was not timed", "1 of 2 rounds were run"]),
        (80.0, [*PAIR, *PAIR[::-1]], ["another was not timed", "1 of 2 rounds were run"]),
        (
            50.0,
            [*PAIR, *PAIR[::-1]],
            ["answers have 12 tokens instead of 24", "another was not timed", "1 of 2 rounds were run"],
        ),
    ],
)
def test_a_slow_machine_measures_less_and_says_so(
    limit_s: float, run: list[str], left_out: list[str], llm: LLM, calls: list[str]
) -> None:
    notes = Notes()
    report = run_demo(llm, PROMPTS, DemoSettings(max_tokens=24, time_limit=limit_s), notes)
    assert calls == run
    assert list(report.left_out) == left_out
    assert [text.partition(" s: ")[2] for text in notes.warned] == left_out
    assert f"to keep the time limit, {'; '.join(left_out)}" in report.warnings()
    assert report.as_dict()["rounds"] == 1
    for prompt in report.as_dict()["prompts"]:
        assert prompt["plain_tok_s"] is prompt["speculative_tok_s"] is prompt["speedup"] is None, "seen once"
    tokens = [sample.tokens[0] for measured in report.measured for sample in measured.samples]
    assert max(tokens) < (12 if limit_s == 50.0 else 24)


def test_other_programs_are_noticed_before_and_after(llm: LLM, quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = others.Taken(cores=1.4, of=2, own=2)
    monkeypatch.setattr(others, "taken_now", lambda seconds: busy)
    monkeypatch.setattr(others, "taken", lambda before, after: busy)
    notes = Notes()
    report = run_demo(llm, PROMPTS, DemoSettings(max_tokens=4, num_rounds=1, compare=False), notes)
    assert notes.warned[0].startswith("other programs keep 1.4 of 2 cores busy")
    assert report.warnings()[:2] == [
        "other programs kept 1.4 of 2 cores busy meanwhile",
        "so these are no measurements of this machine: run it again when nothing else does",
    ]
    assert report.as_dict()["others_cores"] == 1.4


@pytest.mark.parametrize(("name", "value"), [("max_tokens", 1), ("num_rounds", 0), ("time_limit", 0.5)])
def test_settings_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        DemoSettings(**{name: value})


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
