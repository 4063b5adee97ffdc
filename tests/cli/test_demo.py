from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cli.fakes import FakeLLM, stats
from outpace import Chunk
from outpace.cli import demo as command
from outpace.cli.main import main
from outpace.cli.status import Status
from outpace.lab.demo.lossless import Difference, Verdict
from outpace.lab.demo.report import DemoReport, Measured
from outpace.lab.demo.run import PROMPTS, DemoSettings, Watcher
from outpace.lab.timing.answer import Timing
from outpace.lab.timing.others import Taken
from outpace.lab.timing.samples import Sample


def measured(kind: str, dtype: str, seconds: Sequence[float], cycles: int) -> Measured:
    """A prompt of 60 tokens for each, twice."""
    samples = tuple(Sample(tokens=[60, 60], seconds=[s, s]) for s in seconds)
    return Measured(kind=kind, dtype=dtype, samples=samples, cycles=(cycles,) * len(samples))


def report(*, differences: tuple[Difference, ...] = (), rounding: bool = True) -> DemoReport:
    """Plain 40 and 30 tok/s, speculative 60: accept length 3 against a break-even of 2."""
    return DemoReport(
        model={"engine": {"k": 4}, "dtype": "bfloat16"},
        machine={"cores": 2},
        prompts=("a", "b"),
        verdict=Verdict(
            equal_up_to_rounding=rounding,
            num_prompts=2,
            num_equal=2 - len(differences),
            num_tokens_equal=120,
            max_logit_difference=0.25,
            differences=differences,
        ),
        phases_s={"draft": 0.01, "verify": 0.03, "accept": 0.005},
        gap_s=0.005,
        measured=(
            measured("plain", "bfloat16", (1.5, 1.5), 60),
            measured("speculative", "bfloat16", (1.0, 1.0), 20),
            measured("plain", "float32", (2.0, 2.0), 60),
            measured("transformers", "bfloat16", (3.0, 3.0), 60),
        ),
        seconds=90.0,
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces the measurement; says what it was asked to do, and what it answers is `report`."""
    found: dict[str, Any] = {"report": report()}

    def run_demo(llm: object, prompts: Sequence[str], settings: DemoSettings, watcher: Watcher) -> DemoReport:
        found.update(prompts=tuple(prompts), settings=settings)
        answer: DemoReport = found["report"]
        return answer

    monkeypatch.setattr(command, "run_demo", run_demo)
    monkeypatch.setattr(command.Page, "head", lambda page, llm: None)
    return found


def test_the_page_says_why(llm: FakeLLM, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "plain bfloat16 40.0 tok/s 1.00×" in text
    assert "speculative bfloat16 60.0 tok/s 1.50×" in text
    assert "transformers bfloat16 20.0 tok/s 0.50×" in text
    assert "lossless: yes, 2 of 2 answers token for token" in text
    assert "speedup 1.50× without an interval over the fastest plain decoding: too few to tell" in text
    assert "There are too few prompts to tell whether speculation pays: its speed over the fastest plain" in text
    assert "An interval takes 4 prompts or more (--prompt); there are 2." in text
    assert "A cycle brings 3.00 tokens and breaks even at 2.00: verifying 5 tokens costs 1.20 plain steps" in text
    assert "drafting 4 costs 0.40, everything else 0.40" in text
    assert asked["prompts"] == PROMPTS
    assert llm.made_with["model"] == "smollm2"
    assert llm.made_with["prefix_reuse"] is False


@pytest.mark.parametrize(
    ("speculative", "begins", "verdict"),
    [
        ((1.0, 1.1, 0.9, 1.0), "Speculation pays: its speed over", "pays"),
        (
            (2.0, 2.1, 1.9, 2.0),
            "Speculation does not pay: its speed over",
            "does not pay",
        ),
        ((0.4, 4.0, 0.3, 1.0), "Whether speculation pays is too close to tell: its speed over", "too close to tell"),
    ],
)
def test_the_verdict_follows_the_interval(
    speculative: Sequence[float], begins: str, verdict: str, llm: FakeLLM, asked: dict[str, Any], capsys: Any
) -> None:
    """A busy machine's speedup of 2.85 (0.71 … 12.33) was once said to pay, since its value did."""
    both = (measured("plain", "float32", (1.5,) * 4, 60), measured("speculative", "float32", speculative, 20))
    asked["report"] = replace(report(), prompts=tuple("abcd"), measured=both)
    assert main(["demo"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert begins in text
    assert ("more prompts (--prompt) would settle it" in text) == (verdict == "too close to tell")
    assert asked["report"].as_dict()["verdict"] == verdict
    assert asked["report"].as_dict()["why"].startswith(begins)


def test_json_has_the_promised_keys(llm: FakeLLM, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plain_tok_s"] == 40.0
    assert found["speculative_tok_s"] == 60.0
    assert found["speedup"] == 1.5
    assert found["accept_length"] == 3.0
    assert found["break_even_accept_length"] == 2.0
    assert found["lossless"] is True
    assert found["equal_up_to_rounding"] is True
    assert found["speedup_95"] is None
    assert found["k"] == 4
    assert found["machine"] == {"cores": 2}
    assert found["plain_dtype"] == "bfloat16"
    assert found["plain_tok_s_by_dtype"] == {"bfloat16": 40.0, "float32": 30.0}
    assert found["plain_over_transformers"] == 2.0


def test_the_speedup_is_over_the_fastest_plain_decoding(asked: dict[str, Any]) -> None:
    found = asked["report"]
    assert found.plain.dtype == "bfloat16"
    assert found.speedup.value == pytest.approx(1.5)
    assert found.residual == pytest.approx(1 - 3.0 / 0.05 / 60.0)


def test_a_difference_shows_gap_and_rounding(
    llm: FakeLLM, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    near = Difference(prompt=1, position=30, plain_token=5, speculative_token=6, gap=0.125)
    asked["report"] = report(differences=(near,))
    assert main(["demo"]) == 0
    text = capsys.readouterr().out
    assert "up to rounding, 1 of 2 answers token for token; the others part where two logits are within 0.125" in text
    assert "yes" not in text
    assert "answer 2, token 31: plain's logits of the two choices lie 0.125 apart" in text
    assert "up to 0.25" in text
    assert main(["demo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["lossless"], found["equal_up_to_rounding"]) == (False, True)


def test_a_changed_answer_fails_the_command(
    llm: FakeLLM, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    far = Difference(prompt=0, position=3, plain_token=5, speculative_token=6, gap=4.0)
    asked["report"] = report(differences=(far,), rounding=False)
    assert main(["demo"]) == 1
    assert "NO, 1 of 2" in capsys.readouterr().out


def test_an_answer_that_ends_early_is_shown_and_is_json(
    llm: FakeLLM, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ends = Difference(prompt=0, position=3, plain_token=-1, speculative_token=-1, gap=None)
    asked["report"] = report(differences=(ends,), rounding=False)
    assert main(["demo"]) == 1
    assert "answer 1, token 4: one of the two ends" in capsys.readouterr().out
    assert main(["demo", "--json"]) == 1
    assert "Infinity" not in capsys.readouterr().out


def test_flags_reach_the_measurement(llm: FakeLLM, asked: dict[str, Any]) -> None:
    main(["demo", "other", "--quick", "--max-tokens", "9", "--prompt", "x", "--prompt", "y", "--k", "7"])
    assert asked["prompts"] == ("x", "y")
    assert asked["settings"] == DemoSettings(max_tokens=9, compare=False)
    assert llm.made_with["model"] == "other"
    assert llm.made_with["k"] == 7


TIMING = Timing(token_ids=(1, 2, 3, 4, 5), first_s=0.1, decode_s=0.2, num_decoded=4, cycles=2)


def test_the_first_pass_shows_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    """What one answer took while it was shown is no measurement."""
    page = command.Page(Status(sys.stderr), silent=False)
    page.begin("What?", "2 of 4, about 3 min left")
    page.chunk("plain", Chunk(text="This.", token_ids=(5,), finish_reason=None, stopped_by=None, stats=stats(1)))
    page.end("plain", TIMING)
    page.end("speculative", TIMING)
    shown = capsys.readouterr().out
    assert "❯ What?   (2 of 4, about 3 min left)" in shown
    assert "5 tokens" in shown and "accept length 2.00" in shown and "tok/s" not in shown


def test_where_answers_are_not_shown_the_place_is(capsys: pytest.CaptureFixture[str]) -> None:
    page = command.Page(Status(sys.stderr), silent=True)
    page.begin("What?", "1 of 4")
    page.end("plain", TIMING)
    page.warn("other programs keep 1.4 of 2 cores busy")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == ["answering prompt 1 of 4", "! other programs keep 1.4 of 2 cores busy"]


def test_a_speed_lies_within_its_range() -> None:
    """On a busy machine one answer is slow in one round and another in the other."""
    samples = (Sample(tokens=[60, 60], seconds=[1.0, 6.0]), Sample(tokens=[60, 60], seconds=[6.0, 1.0]))
    busy = Measured(kind="plain", dtype="bfloat16", samples=samples, cycles=(60, 60))
    slowest, fastest = busy.range_tok_s
    assert (slowest, fastest) == (pytest.approx(10.0), pytest.approx(60.0))
    assert slowest < busy.tok_s < fastest


def test_warnings_come_before_figures(llm: FakeLLM, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    unquiet = measured("speculative", "bfloat16", (1.0, 1.0), 20)
    unquiet = replace(unquiet, samples=tuple(replace(s, seconds=[1.0, 3.0]) for s in unquiet.samples))
    asked["report"] = replace(
        report(),
        measured=(measured("plain", "bfloat16", (1.5, 1.5), 60), unquiet),
        others=Taken(cores=1.6, of=2, own=2),
        left_out=("1 of 2 rounds were run",),
    )
    assert main(["demo"]) == 0
    text = capsys.readouterr().out
    assert text.index("! other programs kept 1.6 of 2 cores busy meanwhile") < text.index("tok/s")
    assert "! the same answer took 2.0 times as long in one round as in another at the median" in text
    assert "! to keep the time limit, 1 of 2 rounds were run" in text
    assert "20.0 … 60.0 by round" in text
    assert main(["demo", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == 4
