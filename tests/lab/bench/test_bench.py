"""Figures of servers whose true speeds are known: a clock of our own, three dialects, chunks of several tokens."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lab.fake_server import Engine, FakeServer
from lab.virtual import run
from outpace.errors import ConfigError
from outpace.lab.bench import run as bench_run
from outpace.lab.bench.endpoint import Endpoint, without_secrets
from outpace.lab.bench.exposed import Metrics, of_counters, read_metrics
from outpace.lab.bench.progress import Progress
from outpace.lab.bench.record import BenchRecord
from outpace.lab.bench.settings import Asking, Load
from outpace.lab.written import to_json

URL = "http://fake:1"


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("asks") / "asks.jsonl"
    rows: list[Any] = [f"Question {n}?" for n in range(15)]
    rows += [{"prompt": "Another."}, {"messages": [{"role": "user", "content": "Chat."}]}, {"turns": ["One", "two"]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def measured(server: FakeServer, workload: str, *, tokens: Any = None, **settings: Any) -> BenchRecord:
    """What bench says of a server."""
    loads = {name: settings.pop(name) for name in list(settings) if name in Load.__slots__}
    asking = Asking(workload=(workload,), **settings)

    async def whole() -> BenchRecord:
        endpoint = Endpoint(URL, transport=server)
        return await bench_run.bench(
            endpoint, asking, Load(**{"num_prompts": 6} | loads), tokens=tokens, client=lambda: {"cpu": "none"}
        )

    return run(whole())


@pytest.mark.parametrize("engine", ["outpace", "vllm", "sglang", "plain"])
@pytest.mark.parametrize("per_chunk", [1, 4])
def test_the_true_speed_in_every_dialect(engine: Engine, per_chunk: int, workload: str) -> None:
    """Within 1%, whatever a chunk holds."""
    server = FakeServer(engine=engine, per_chunk=per_chunk)
    found = measured(server, workload).figures
    decode_s = 20 * 0.02  # 60 tokens, three a cycle
    assert found.decode_tok_s is not None and found.total_tok_s is not None and found.tok_s_per_user is not None
    assert found.decode_tok_s.median == pytest.approx(60 / decode_s, rel=0.01)
    assert found.total_tok_s.value == pytest.approx(61 / (0.2 + decode_s), rel=0.01)
    assert found.tok_s_per_user.median == pytest.approx(61 / (0.2 + decode_s), rel=0.01)
    assert found.ttft_s is not None and found.ttft_s.median == pytest.approx(0.2)
    assert found.total_tokens == 6 * 61
    assert found.inter_chunk_s is not None and found.inter_token_s is not None
    assert found.inter_chunk_s.median == pytest.approx(0.02 * per_chunk)
    assert found.inter_token_s.median == pytest.approx(0.02 / 3)
    assert found.tokens_per_chunk == pytest.approx(3 * per_chunk)


@pytest.mark.parametrize(
    ("engine", "sources"),
    [("outpace", ["requests", "counters"]), ("vllm", ["counters"]), ("sglang", ["gauge"]), ("plain", [])],
)
def test_acceptance_from_whatever_is_exposed(engine: Engine, sources: list[str], workload: str) -> None:
    record = measured(FakeServer(engine=engine), workload)
    assert [each.source for each in record.acceptance] == sources
    for each in record.acceptance:
        assert each.accept_length == pytest.approx(3.0)
        assert each.acceptance_rate == pytest.approx(2 / 4), "SGLang's rate is 0.6 here: accept length / draft tokens"
    if engine in ("vllm", "outpace"):
        assert all(each.by_position == (1.0, 1.0, 0.0, 0.0) for each in record.acceptance)
    if engine == "vllm":
        assert record.acceptance[0].cycles == 6 * 20, "the warm-up's cycles are not among them"
    if sources:
        assert record.implied_cycle_s == pytest.approx(0.02, rel=0.01)
    else:
        assert record.implied_cycle_s is None


def test_drafts_of_varying_length_are_judged_where_they_were_made() -> None:
    """vLLM's newer versions tell how often a place was drafted; a later one is not drafted in every cycle."""
    counts = {"drafts": 4, "draft_tokens": 6, "accepted_tokens": 3}
    places = {"accepted_tokens_per_pos": (2, 1), "draft_tokens_per_pos": (4, 2, 0)}
    text = ""
    for name in (*counts, *places):
        text += f"# TYPE vllm:spec_decode_num_{name} counter\n"
        for place, count in enumerate(places.get(name, ())):
            text += f'vllm:spec_decode_num_{name}_total{{engine="0",position="{place}"}} {count}\n'
        if name in counts:
            text += f'vllm:spec_decode_num_{name}_total{{engine="0"}} {counts[name]}\n'
    found = of_counters(Metrics({}), read_metrics(text))
    assert found is not None and found.accept_length == pytest.approx(7 / 4)
    assert found.by_position == (0.5, 0.5)
    older = of_counters(Metrics({}), read_metrics(text.replace("draft_tokens_per_pos", "other_per_pos")))
    assert older is not None and older.by_position == (0.5, 0.25)


@pytest.mark.parametrize(
    ("engine", "tells", "other"),
    [
        ("vllm", "metrics", "counters"),
        ("sglang", "sglext", "gauge"),
        ("sglang", "details", "gauge"),
        ("plain", "timings", ""),
    ],
)
def test_acceptance_as_answers_tell_it(engine: Engine, tells: str, other: str, workload: str) -> None:
    record = measured(FakeServer(engine=engine, tells=tells), workload)
    assert [each.source for each in record.acceptance] == ["requests", *([other] if other else [])]
    own = record.acceptance[0]
    assert own.accept_length == pytest.approx(3.0) and own.acceptance_rate == pytest.approx(0.5)
    assert own.cycles == 6 * 20
    assert own.by_position == ((1.0, 1.0, 0.0, 0.0) if tells in ("metrics", "sglext") else ())
    asked = record.usage_asked.get("return_spec_tokens_details")
    assert asked is (True if engine == "sglang" else None), "only SGLang knows the field"
    refusing = measured(FakeServer(engine=engine, tells=tells, refuse=("return_spec_tokens_details",)), workload)
    assert "return_spec_tokens_details" not in refusing.usage_asked


def test_what_the_server_is(workload: str) -> None:
    record = measured(FakeServer(engine="sglang"), workload)
    assert (record.server.engine, record.server.version, record.server.model) == ("sglang", "0.5.9", "fake")
    assert record.server.settings == {"version": "0.5.9", "speculative_num_draft_tokens": 5, "tp_size": 8}
    assert "hidden" not in to_json(record)


def test_secrets_at_any_depth_are_left_out() -> None:
    deep = {"inner": {"hf_token": "x", "max_tokens": 5}, "states": [{"api_key": "x", "k": 3}]}
    kept = without_secrets({"api_key": "x", "key_bits": 4} | deep)
    assert kept == {"inner": {"max_tokens": 5}, "key_bits": 4, "states": [{"k": 3}]}
    nested: Any = {"api_key": "x", "k": 3}
    for _ in range(900):
        nested = {"a": [nested]}
    kept = without_secrets(nested)
    assert "nested too deep" in str(kept) and "api_key" not in str(kept)
    assert Endpoint("https://me:secret@host:8/v1/").url == "https://host:8"


def test_a_fast_start_does_not_hide_a_slow_end(workload: str) -> None:
    server = FakeServer(engine="vllm", tokens=301, prompt_tokens=100, slow_after=250)
    found = measured(server, workload, max_tokens=400, context_edges=(200, 250, 300)).figures
    speeds = {(bucket.above, bucket.to): bucket.tok_s.value for bucket in found.by_context}
    assert speeds[0, 200] == pytest.approx(150, rel=0.01)
    assert speeds[200, 250] == pytest.approx(150, rel=0.02)
    assert speeds[250, 300] == pytest.approx(75, rel=0.02)
    assert speeds[300, None] == pytest.approx(75, rel=0.01)
    assert sum(bucket.tokens for bucket in found.by_context) == pytest.approx(6 * 300)


def test_concurrency(workload: str) -> None:
    server = FakeServer(engine="vllm")
    found = measured(server, workload, concurrency=3).figures
    assert server.most_running == 3
    assert found.total_tok_s is not None and found.decode_tok_s is not None
    assert found.total_tok_s.value == pytest.approx(3 * 61 / 0.6, rel=0.01)
    assert found.decode_tok_s.median == pytest.approx(150, rel=0.01)
    assert found.mean_concurrency == pytest.approx(3.0, rel=0.01)


def test_request_rate(workload: str) -> None:
    def asked() -> list[float]:
        server = FakeServer(engine="vllm", tokens=7)
        return [request.sent_s for request in measured(server, workload, num_prompts=80, request_rate=5.0).requests]

    sent = asked()
    assert sent[-1] == pytest.approx(79 / 5.0, rel=0.25)
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    assert sum(gap < 0.05 for gap in gaps) > 8, "arrivals are random, not even"
    assert asked() == pytest.approx(sent), "and the same each time"


def test_the_warm_up_is_asked_and_not_counted(workload: str) -> None:
    server = FakeServer(engine="vllm")
    record = measured(server, workload, num_warmup=3)
    texts = [body["messages"][0]["content"] for body in server.asked]
    assert len(texts) == 1 + 3 + 6, "one by which it is found how the server counts"
    assert set(texts[:4]).isdisjoint(texts[4:])
    assert record.figures.num_requests == len(record.requests) == 6


def test_failures_are_counted_and_shown(workload: str) -> None:
    found = measured(FakeServer(engine="vllm", fail_every=3), workload, num_prompts=9, num_warmup=0).figures
    assert found.num_failed == 3 and found.errors == {"HTTP 500": 3}
    assert found.examples == {"HTTP 500": "HTTP 500: the engine is on fire"}
    assert found.total_tokens == 6 * 61


def cut(server: FakeServer, workload: str, at: int, **settings: Any) -> BenchRecord:
    """What is kept when the run is cancelled as so manieth request arrives."""

    async def whole() -> BenchRecord:
        task = asyncio.current_task()
        assert task is not None
        server.on_asked = lambda number: task.cancel() and None if number == at else None
        endpoint = Endpoint(URL, transport=server)
        load = Load(**{"num_prompts": 9, "num_warmup": 2} | settings)
        asking = Asking(workload=(workload,))
        return await bench_run.bench(endpoint, asking, load, client=dict, may_be_cut=True)

    return run(whole())


@pytest.mark.parametrize("load", [{}, {"concurrency": 3, "num_warmup": 3}, {"request_rate": 0.5}])
def test_what_was_answered_before_it_was_cut_short_is_kept(load: dict[str, Any], workload: str) -> None:
    """What was under way then is no failure and in no figure."""
    record = cut(FakeServer(engine="vllm"), workload, 1 + load.get("num_warmup", 2) + 6, **load)
    done = 3 if "concurrency" in load else 5
    assert record.cut_short and len(record.requests) == record.figures.num_requests == done
    assert record.figures.num_failed == 0
    assert record.figures.decode_tok_s is not None
    assert record.figures.decode_tok_s.median == pytest.approx(150, rel=0.01)
    assert record.notes[0].startswith(f"cut short: {done} of 9 requests were answered")
    assert msgspec.json.decode(to_json(record), type=BenchRecord) == record
    assert not measured(FakeServer(engine="vllm"), workload).cut_short


@pytest.mark.parametrize("at", [1, 2, 4])
def test_before_the_first_answer_there_is_nothing_to_keep(at: int, workload: str) -> None:
    with pytest.raises(asyncio.CancelledError):
        cut(FakeServer(engine="vllm"), workload, at)


def test_how_far_it_is_and_how_long_it_takes() -> None:
    told: list[str] = []
    now = 0.0
    progress = Progress(4, told.append, lambda: now)
    progress.at("block 1 of 2")
    for now in (10.0, 30.0):  # noqa: B007 the clock
        progress.done()
    assert told == [
        "measuring: block 1 of 2, 0 of 4 requests",
        "measuring: block 1 of 2, 1 of 4 requests, about 30 s left",
        "measuring: block 1 of 2, 2 of 4 requests, about 30 s left",
    ]


def test_goodput(workload: str) -> None:
    server = FakeServer(engine="vllm")
    good = measured(server, workload, max_ttft_ms=201, max_tpot_ms=7.0, max_latency_ms=601).figures.goodput
    assert good is not None and good.share == 1.0
    assert good.tok_s == pytest.approx(61 / 0.6, rel=0.01)
    for limit in ({"max_ttft_ms": 199.0}, {"max_tpot_ms": 6.6}, {"max_latency_ms": 599.0}):
        none = measured(server, workload, **limit).figures.goodput
        assert none is not None and none.num_good == 0
    failing = measured(FakeServer(engine="vllm", fail_every=3), workload, num_warmup=0, max_ttft_ms=999.0)
    assert failing.figures.goodput is not None and failing.figures.goodput.share == pytest.approx(2 / 3)


class Words:
    """A token a word."""

    def encode(self, text: str) -> list[int]:
        return [0] * len(text.split())


def test_a_server_without_usage(workload: str) -> None:
    with pytest.raises(ConfigError, match=r"sends no usage.*--tokenizer"):
        measured(FakeServer(sends_usage=False), workload)
    record = measured(FakeServer(sends_usage=False), workload, tokens=Words())
    assert record.counted_by == "tokenizer"
    assert record.figures.total_tokens == 6 * 61


def test_what_a_server_refuses_is_left_out_and_told(workload: str) -> None:
    server = FakeServer(refuse=("continuous_usage_stats",))
    record = measured(server, workload)
    assert record.usage_asked == {"stream_options": {"include_usage": True}}
    assert record.placed_by == "characters"
    assert any("in proportion to its characters" in note for note in record.notes)
    with pytest.raises(ConfigError, match="ignore_eos is not known here"):
        measured(FakeServer(refuse=("ignore_eos",)), workload, ignore_eos=True)


def test_others_on_the_server_are_noticed(workload: str) -> None:
    assert any("others use it" in note for note in measured(FakeServer(engine="vllm", others=9), workload).notes)
    assert not any("others" in note for note in measured(FakeServer(engine="vllm"), workload).notes)


@pytest.mark.parametrize(
    ("setting", "said"),
    [({"simulate_acceptance": [0.6]}, "acceptance is simulated"), ({"expert_reuse": 2}, "share experts")],
)
def test_a_server_whose_answers_are_not_what_they_seem_is_noted(
    setting: dict[str, Any], said: str, workload: str
) -> None:
    (note,) = (
        n for n in measured(FakeServer(engine="outpace", marked=setting), workload).notes if "of the server" in n
    )
    assert said in note
    record = measured(FakeServer(engine="outpace", marked=dict.fromkeys(setting, 0)), workload)
    assert not any("of the server" in note for note in record.notes)


def test_prompts_of_a_length(workload: str) -> None:
    server = FakeServer(engine="vllm", prompt_tokens=500)
    measured(server, workload, input_tokens=500)
    lengths = [len(body["messages"][0]["content"]) for body in server.asked[-6:]]
    assert lengths == [2000] * 6, "the server counts 500 tokens for the probe's 2,000 characters"
    assert len({body["messages"][0]["content"] for body in server.asked[-6:]}) == 6


def test_prompts_asked_again_are_told(workload: str) -> None:
    record = measured(FakeServer(engine="vllm"), workload, num_prompts=30)
    assert any("asked more than once" in note for note in record.notes)
    assert len({request.id for request in record.requests}) == 30


def test_the_record_is_read_back(workload: str) -> None:
    record = measured(FakeServer(engine="outpace"), workload)
    assert msgspec.json.decode(to_json(record), type=BenchRecord) == record


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("{", "line 1 is no JSON"),
        ('"fine"\n{"question": 1}', "line 2 has no text"),
        ('{"prompt": "x", "max_tokens": 0}', "max_tokens 0"),
    ],
)
def test_broken_workloads(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "asks.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        measured(FakeServer(), str(path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"concurrency": 2, "request_rate": 1.0}, "give one of the two"),
        ({"num_prompts": 0}, "num_prompts is 0"),
        ({"context_edges": (5, 5)}, "must be above 0 and ascend"),
        ({"request_rate": 0.0}, "request_rate is 0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Load(**settings)
