"""The doctor on live servers: watched and asked, ours, SGLang's and vLLM's names, and servers that tell nothing."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest

from lab import virtual
from lab.fake_http import listening
from lab.fake_server import FakeServer
from outpace.cli.doctor import kind_of
from outpace.cli.main import main
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.bench.settings import Asking
from outpace.lab.doctor.case import choose, measure
from outpace.lab.doctor.diagnosis import Diagnosis, diagnose
from outpace.lab.doctor.finding import Finding
from outpace.lab.doctor.live import Seen, ask, watch

URL = "http://fake"


class Working(FakeServer):
    """Between two readings of its metrics it writes `grows` tokens."""

    grows = 90

    def metrics(self) -> str:
        text = super().metrics()
        self.written += self.grows
        self.cycles += self.grows // self.accept_length
        if self.engine == "outpace":
            return f"{text}# TYPE outpace_running gauge\noutpace_running 2\n"
        return text


class Ours(Working):
    """With a state that holds what control measured."""

    state: ClassVar[dict[str, Any]] = {
        "settings": {"engine": {"k": 4}, "graphs": {"why_none": "cycles run as they come on a CPU"}},
        "now": {
            "k": 3,
            "why": "k 3 would emit 2.40 tokens a cycle and breaks even at 1.62 (2 rows, 100 tokens each)",
            "weighed": {"k": 3, "accept_length": 2.4, "break_even": 1.62},
            "control": {"costs": [{"bucket": 1, "k": 0, "base_ms": 10.0}, {"bucket": 4, "k": 0, "base_ms": 20.0}]},
        },
    }

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/outpace/state":
            return httpx2.Response(200, json=self.state)
        return await super().handle_async_request(request)


def seen(fake: FakeServer, seconds: float = 0.3) -> Seen:
    async def run() -> Seen:
        endpoint = Endpoint(URL, transport=fake)
        try:
            return await watch(endpoint, seconds)
        finally:
            await endpoint.close()

    return asyncio.run(run())


def judged(found: Seen) -> Diagnosis:
    return diagnose(choose([found.run], [], None), {}, found=found.findings, not_known=found.not_known)


def of(found: Diagnosis, question: str) -> Finding:
    (finding,) = [each for each in found.findings if question in each.question]
    return finding


def test_ours_tells_what_plain_decoding_costs() -> None:
    found = seen(Ours(engine="outpace"))
    m = measure(choose([found.run], [], None))
    assert m.plain is not None and m.plain.value == pytest.approx(2 * 1e3 / 20.0), "the bucket that holds two rows"
    assert m.running == 2
    assert m.accept_length == pytest.approx(3.0)
    page = judged(found)
    assert of(page, "control do now").answer == "k = 3"
    assert of(page, "are cycles graphs").answer == "no"
    assert of(page, "accepted").answer == "accept length 3.00"
    assert found.run.per_position == (1.0, 1.0, 0.0, 0.0)
    assert not any("by position" in unknown.question for unknown in page.unknown)


@pytest.mark.parametrize("state", [{}, {"now": None}, {"now": {"control": []}}, {"now": {"control": {"costs": [1]}}}])
def test_a_state_that_lacks_things_is_no_error(state: dict[str, Any]) -> None:
    fake = Ours(engine="outpace")
    fake.state = state  # type: ignore[misc]
    page = judged(seen(fake))
    assert of(page, "does speculation pay").answer == "unknown"
    assert any("whether speculation pays" in unknown.question for unknown in page.unknown)


def test_ours_tells_of_answers_that_are_not_what_they_seem() -> None:
    marked = judged(seen(Working(engine="outpace", marked={"simulate_acceptance": [0.6]})))
    assert "acceptance is simulated" in of(marked, "are its answers what they seem").text
    assert not any("what they seem" in each.question for each in judged(seen(Working(engine="outpace"))).findings)


def test_settings_of_one_name_are_the_engines() -> None:
    """Control's own k is what it chose."""
    found = seen(Working(engine="outpace"))
    assert found.run.asked["k"].value == 4 and found.run.max_accept_length == 5


def test_vllm_tells_positions_and_no_settings() -> None:
    page = judged(seen(Working(engine="vllm")))
    assert of(page, "is the drafter wired right").numbers["per_position"] == [1.0, 1.0, 0.0, 0.0]
    assert any("vLLM tells none" in unknown.question for unknown in page.unknown)


def test_a_collapse_at_position_0_is_wiring() -> None:
    page = judged(seen(Working(engine="vllm", accept_length=1)))
    wired = of(page, "is the drafter wired right")
    assert wired.answer == "no: wiring"
    assert "is wired wrongly" in wired.text and "outpace doctor MODEL" in wired.text


def test_sglang_tells_settings_and_gauges() -> None:
    found = seen(Working(engine="sglang"))
    assert found.run.asked["speculative_num_draft_tokens"].value == 5
    assert "hidden" not in json.dumps({name: str(value.value) for name, value in found.run.asked.items()})
    assert of(judged(found), "accepted").confidence == "low", "a gauge of the last intervals"


def test_a_server_that_does_nothing_meanwhile() -> None:
    idle = Working(engine="vllm", written=500, cycles=100)
    idle.grows = 0
    page = judged(seen(idle))
    assert page.verdict[0] == f"{URL} wrote nothing while it was watched."
    assert "--num-prompts" in page.verdict[2]
    assert of(page, "accepted").answer == "accept length 3.00", "since it was started"


def test_a_server_without_metrics() -> None:
    page = judged(seen(FakeServer(engine="plain")))
    questions = [unknown.question for unknown in page.unknown]
    assert any("it shows no metrics" in question for question in questions)
    assert any("whether it speculates at all" in question for question in questions)
    assert page.verdict


def asked(fake: FakeServer, folder: Path) -> Seen:
    """Its answers to eight prompts, on a clock of their own."""
    asks = folder / "asks.jsonl"
    asks.write_text("".join(json.dumps(f"What is {n}?") + "\n" for n in range(9)))

    async def whole() -> Seen:
        endpoint = Endpoint(URL, transport=fake)
        try:
            return await ask(endpoint, Asking(workload=(str(asks),)), 8, dict)
        finally:
            await endpoint.close()

    return virtual.run(whole())


def test_asked_it_is_judged_by_its_answers(tmp_path: Path) -> None:
    fake = FakeServer(engine="vllm", tokens=61, cycle_s=0.01, ttft_s=0.01)
    found = asked(fake, tmp_path)
    m = measure(choose([found.run], [], None))
    assert m.speed is not None and m.speed.count == 8
    truth = 60 * 8 / sum(last - first for first, last in fake.times[-8:])
    assert m.speed.value == pytest.approx(truth, rel=0.03)
    assert m.accept_length == pytest.approx(3.0, rel=0.01)
    assert m.cycle_ms == pytest.approx(3e3 / truth, rel=0.03)


def with_a_plain_step_of(step_ms: float, slope: float = 0.0) -> Ours:
    """Cycles of 20 ms that bring 3 tokens, and what the cost table says of a plain step."""
    fake = Ours(engine="outpace", tokens=61, cycle_s=0.02)
    costs = [{"bucket": 1, "k": 0, "base_ms": step_ms, "us_per_1k_context": slope}]
    now = Ours.state["now"] | {"control": {"costs": costs}}
    fake.state = Ours.state | {"now": now, "totals": {"tokens": 488}}  # type: ignore[misc]
    return fake


def test_a_break_even_by_the_cost_table_alone_is_an_estimate_and_says_so(tmp_path: Path) -> None:
    page = judged(asked(with_a_plain_step_of(8.0), tmp_path))
    assert page.verdict[0] == (
        "Speculation is estimated to pay: 150.0 tok/s against 125.0 plain, 1.20× as fast, plain's estimated from the "
        "cost table of its control."
    )
    pays, even = of(page, "does speculation pay"), of(page, "break-even")
    assert (pays.answer, pays.confidence) == ("estimated: 1.20× as fast", "low")
    assert (even.answer, even.confidence) == ("2.50, estimated from the cost table", "low")
    assert page.findings[0].as_dict()["numbers"]["plain_tok_s"]["estimated"] is True
    assert any("measured and not estimated" in unknown.question for unknown in page.unknown)
    costs = judged(asked(with_a_plain_step_of(6.0), tmp_path))
    assert costs.verdict[0].startswith("Speculation is estimated to cost speed")
    assert [advice.confidence for advice in costs.advice] == ["low"]
    assert "Next turn speculation off: it could reach" in costs.verdict[2]


def test_the_plain_step_is_that_of_the_context_that_was_asked(tmp_path: Path) -> None:
    """Prompts of 40 tokens and answers of 61: 70.5 on average, at 0.1 ms a token."""
    m = measure(choose([asked(with_a_plain_step_of(8.0, slope=100_000.0), tmp_path).run], [], None))
    assert m.step_ms == pytest.approx(8.0 + 7.05)


def test_a_break_even_below_1_is_a_contradiction_and_nothing_follows_from_it(tmp_path: Path) -> None:
    """A cycle of 20 ms has no plain step of 25 in it."""
    page = judged(asked(with_a_plain_step_of(25.0), tmp_path))
    assert page.verdict[0].startswith("Whether speculation pays cannot be said: its figures contradict each other.")
    pays, even = of(page, "does speculation pay"), of(page, "break-even")
    assert (pays.answer, pays.confidence) == ("unknown", "low")
    assert (even.answer, even.confidence) == ("none: the figures contradict each other", "low")
    assert "break_even_accept_length" not in even.numbers and not page.advice
    assert "0.8" not in " ".join([*page.verdict, even.text])


def test_one_accept_length_by_one_source_which_is_named(tmp_path: Path) -> None:
    """Short answers and long ones, whose mean is another number than all tokens over all cycles."""
    fake = with_a_plain_step_of(8.0)
    usage = fake._usage

    def of_varying(sent: int, cycles: int) -> dict[str, Any]:
        found = usage(sent, cycles)
        if len(fake.asked) % 2 and "speculation" in found:
            found["speculation"] |= {"cycles": 2 * cycles, "drafted_at": [2 * cycles] * 4}
        return found

    fake._usage = of_varying  # type: ignore[method-assign]
    found = asked(fake, tmp_path)
    page, (length, how) = judged(found), (found.run.accepted.length, found.run.accepted.how)  # type: ignore[union-attr]
    assert (length, how) == (pytest.approx(8 * 60 / (4 * 20 + 4 * 40)), "by its answers")
    assert f"A cycle brings {length:.2f} tokens (by its answers)" in page.verdict[1]
    assert of(page, "accepted").answer == f"accept length {length:.2f}"
    assert f"it brings {length:.2f}" in of(page, "break-even").text


def test_plain_steps_among_the_cycles_are_no_part_of_the_accept_length(tmp_path: Path) -> None:
    fake = with_a_plain_step_of(8.0)
    usage = fake._usage

    def with_plain_steps(sent: int, cycles: int) -> dict[str, Any]:
        """Of 60 tokens 12 were plain steps', and 48 came from 16 cycles."""
        found = usage(sent, cycles)
        if "speculation" in found and sent == 61:
            found["speculation"] |= {"cycles": 28, "drafted_at": [16] * 4, "accepted_at": [16, 16, 0, 0]}
        return found

    fake._usage = with_plain_steps  # type: ignore[method-assign]
    found = asked(fake, tmp_path)
    m = measure(choose([found.run], [], None))
    assert m.accept_length == pytest.approx(3.0) and m.plain_part == pytest.approx(12 / 28)
    assert m.cycle_ms == pytest.approx((400.0 - 12 * 8.0) / 16), "an answer's time without its plain steps"
    assert "43% of its cycles were plain steps, which are left out" in of(judged(found), "accepted").text


def idle(drafter: dict[str, Any] | None, control: str = "auto") -> Ours:
    fake = Ours(engine="outpace")
    fake.grows = 0
    settings = {"engine": {"k": 4, "control": control}, "drafter": drafter, "drafter_source": "eagle3-x"}
    now = {"k": 0, "why": "nothing was asked yet", "weighed": None, "control": {"kind": control}}
    fake.state = {"settings": settings, "now": now, "totals": {"tokens": 0}}  # type: ignore[misc]
    return fake


@pytest.mark.parametrize(
    ("control", "how"),
    [("auto", "up to 4 drafts a cycle, as many as its control finds to pay"), ("fixed", "4 drafts in every cycle")],
)
def test_a_fresh_server_says_with_what_it_would_speculate(control: str, how: str) -> None:
    page = judged(seen(idle({"aux_boundaries": [2, 3, 4]}, control)))
    said = f"It speculates with the drafter eagle3-x, {how}, but has served nothing since it was started."
    assert page.verdict[1] == said
    found = of(page, "set up to speculate")
    assert found.answer == "yes, but it has served nothing"
    assert f"outpace doctor {URL} --num-prompts 8" in found.text
    assert not [each for each in page.findings if each.answer == "decodes plainly"], "nothing was decided yet"
    assert not any("whether it speculates at all" in unknown.question for unknown in page.unknown)


def test_a_fresh_server_without_a_drafter_says_so() -> None:
    page = judged(seen(idle(None)))
    assert of(page, "set up to speculate").answer == "no"
    assert page.verdict[1] == "It speculates with no drafter: whatever is asked is decoded plainly."


# the command


def test_over_a_socket_with_a_log_as_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    log = Path(__file__).parents[2] / "data" / "sglang-baseline.log"
    with listening(Working(engine="vllm")) as url:
        assert main(["doctor", url, "--seconds", "0.3", "--baseline", str(log)]) == 0
        page = capsys.readouterr().out
        assert "plain" in page.splitlines()[0] and "by position" in page.lower()
        assert main(["doctor", url, "--seconds", "0.3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"verdict", "findings", "unknown"} <= found.keys() and found["machine"]["cpu"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["http://127.0.0.1:9"], "cannot reach http://127.0.0.1:9"),
        (["http://127.0.0.1:9", "--drafter", "x"], "--drafter means nothing for a server"),
        (["http://127.0.0.1:9", "--client", "x"], "--client means nothing for a server"),
        (["http://127.0.0.1:9", "--seconds", "0"], "--seconds is 0"),
        (["http://127.0.0.1:9", "--max-tokens", "9"], "say how much with --num-prompts"),
        (["some.log", "--k", "2"], "--k means nothing for a log"),
        (["smollm2", "--baseline", "x.log"], "--baseline means nothing for a model"),
        (["smollm2", "--drafter", "none"], "runs without a drafter"),
        (["smollm2", "--num-prompts", "9"], "num_prompts is 9"),
        (["smollm2", "--k", "0"], "k is 0"),
    ],
)
def test_what_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert message in capsys.readouterr().err


def test_what_is_a_log_a_server_or_a_model(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("")
    (tmp_path / "m.gguf").write_text("")
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "pipe")
    kinds = {
        str(tmp_path / "pipe"): "a log",
        str(tmp_path / "a.log"): "a log",
        str(tmp_path / "m.gguf"): "a model",
        str(tmp_path): "a model",
        "./nowhere": "a log",
        "nowhere.log": "a log",
        "org/name": "a model",
        "smollm2": "a model",
        "https://x": "a server",
    }
    assert {target: kind_of(target) for target in kinds} == kinds
