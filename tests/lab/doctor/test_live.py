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
            "why": "most tokens a second",
            "break_even": 1.62,
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


def test_asked_it_is_judged_by_its_answers(tmp_path: Path) -> None:
    asks = tmp_path / "asks.jsonl"
    asks.write_text("".join(json.dumps(f"What is {n}?") + "\n" for n in range(9)))
    fake = FakeServer(engine="vllm", tokens=61, cycle_s=0.01, ttft_s=0.01)

    async def run() -> Seen:
        endpoint = Endpoint(URL, transport=fake)
        try:
            return await ask(endpoint, Asking(workload=(str(asks),)), 8, dict)
        finally:
            await endpoint.close()

    found = virtual.run(run())
    m = measure(choose([found.run], [], None))
    assert m.speed is not None and m.speed.count == 8
    truth = 60 * 8 / sum(last - first for first, last in fake.times[-8:])
    assert m.speed.value == pytest.approx(truth, rel=0.03)
    assert m.accept_length == pytest.approx(3.0, rel=0.01)
    assert m.cycle_ms == pytest.approx(3e3 / truth, rel=0.03)


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
