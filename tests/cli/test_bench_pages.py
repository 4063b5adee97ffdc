"""Whole pages and records, of servers on a clock of our own: the same to the letter every time."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from cli.golden import check
from lab.fake_server import FakeServer
from lab.simulated import Machine
from lab.virtual import run
from outpace.cli import bench_page, compare
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.bench.record import BenchRecord
from outpace.lab.bench.run import bench
from outpace.lab.bench.settings import Asking, Load
from outpace.lab.paired.guard import State
from outpace.lab.paired.record import CompareRecord
from outpace.lab.paired.trial import Comparing, Contender
from outpace.lab.paired.trial import compare as compare_servers
from outpace.lab.paired.verdict import judge
from outpace.lab.written import to_json

CLIENT = {"cpu": "a processor", "cores": 2, "gpus": [], "torch": "2.13.0", "threads": 1, "python": "3.11.7"}


@pytest.fixture
def workload(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asks.jsonl").write_text("".join(json.dumps(f"Question {n}?") + "\n" for n in range(30)))
    return "asks.jsonl"


def benched(server: FakeServer, workload: str, load: Load) -> BenchRecord:
    async def whole() -> BenchRecord:
        endpoint = Endpoint("http://server:8000", transport=server)
        return await bench(endpoint, Asking(workload=(workload,)), load, client=lambda: CLIENT)

    return run(whole())


def rounded(value: Any) -> Any:
    """Sums may be taken in another order elsewhere."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 9) if isinstance(value, float) else value


def test_a_page(workload: str) -> None:
    server = FakeServer(engine="vllm", tokens=201, prompt_tokens=200, slow_after=300, fail_every=7, others=50)
    record = benched(server, workload, Load(num_prompts=12, concurrency=2, max_tpot_ms=9.0))
    check("bench.txt", "\n".join(bench_page.lines(record)) + "\n")


def test_a_record(workload: str) -> None:
    record = benched(FakeServer(engine="outpace"), workload, Load(num_prompts=4))
    found = rounded(msgspec.json.decode(to_json(record)) | {"started_at": "then"})
    check("bench.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def test_a_comparison(workload: str) -> None:
    async def whole() -> CompareRecord:
        return await compare_servers(
            Contender("plain", Endpoint("http://a:1", transport=FakeServer(engine="sglang"))),
            Contender("other", Endpoint("http://b:1", transport=FakeServer(engine="outpace", slower=1.2))),
            Asking(workload=(workload,)),
            Comparing(num_blocks=9),
            client=lambda: CLIENT,
            state=State,
        )

    check("compare.txt", "\n".join(compare.lines(run(whole()))) + "\n")


def test_every_verdict_in_words() -> None:
    machines = [
        (Machine(seed=0), 24),
        (Machine(seed=0, true_ratio=1.1), 24),
        (Machine(seed=0, noise=0.05), 24),
        (Machine(seed=0, bias=0.1), 24),
        (Machine(seed=0), 5),
    ]
    said = [compare.sentence(judge(machine.blocks(num), 0.02)) for machine, num in machines]
    check("verdicts.txt", "\n".join(said) + "\n")
