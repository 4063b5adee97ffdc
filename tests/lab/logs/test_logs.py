"""Lines of other servers' logs. What is expected stands in the line itself; nothing is read by another parser."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outpace.lab.logs.literals import read_arguments
from outpace.lab.logs.reader import MOST_LINE, Tally, read_line, read_log
from outpace.lab.logs.records import (
    Capture,
    Decode,
    EngineStats,
    Prefill,
    Profile,
    Ready,
    Record,
    Report,
    Settings,
    SpecStats,
    Unread,
)

DATA = Path(__file__).parents[2] / "data"
CASE = (DATA / "sglang-eagle3-tp8.log").read_bytes()

DECODE = (
    "[2026-02-26 20:40:02 TP0] Decode batch, #running-req: 1, #token: 113, token usage: 0.01, accept len: 1.90, "
    "accept rate: 0.63, cuda graph: True, gen throughput (token/s): 119.32, #queue-req: 0, "
)
PROFILE = (
    "EAGLE3 profile over 40 cycles | Draft:          0.61 ms/cyc (  2.0%) | "
    "Target verify: 29.27 ms/cyc ( 96.8%) | Accept:  0.32 ms/cyc (  1.1%)"
)
STATS = (
    "(APIServer pid=34) INFO 08-04 20:51:08 [loggers.py:310] Engine 000: Avg prompt throughput: 93.9 tokens/s, "
    "Avg generation throughput: 13.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%"
)
SPEC = (
    "(APIServer pid=34) INFO 08-04 20:51:08 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.77, "
    "Accepted throughput: 62.60 tokens/s, Drafted throughput: 106.20 tokens/s, Accepted: 626 tokens, "
    "Drafted: 1062 tokens, Per-position acceptance rate: 0.802, 0.551, 0.415, Avg Draft acceptance rate: 58.9%"
)


def read(text: str | bytes) -> list[Record | Unread]:
    raw = text if isinstance(text, bytes) else text.encode()
    return list(read_log(io.BytesIO(raw)))


def one(text: str) -> Record | Unread:
    (entry,) = read(text)
    return entry


def test_the_whole_case_is_read() -> None:
    entries = read(CASE)
    assert len(entries) == CASE.count(b"\n")
    kinds = [type(entry).__name__ for entry in entries]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "Settings": 1,
        "Unread": 1,
        "Ready": 1,
        "Prefill": 1,
        "Decode": 23,
        "Profile": 23,
    }


def test_a_decode_line() -> None:
    found = one(DECODE)
    assert isinstance(found, Decode)
    assert found.head == (1, "2026-02-26 20:40:02", "TP0")
    assert (found.running, found.tokens, found.graph) == (1, 113, True)
    assert (found.accept_length, found.accept_rate, found.tok_s) == (1.90, 0.63, 119.32)


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (DECODE.replace(" TP0", ""), ""),
        (DECODE.replace("TP0", "DP1 TP3 EP3"), "DP1 TP3 EP3"),
        (DECODE.replace("batch,", "batch."), "TP0"),
        (DECODE.replace(", \n", ""), "TP0"),
        (DECODE.rstrip(", "), "TP0"),
        (f"(worker-7) {DECODE}", "(worker-7) TP0"),
        (f"sglang-1  | {DECODE}", "sglang-1 TP0"),
        (f"2026-02-26T20:40:02.123Z sglang-1  | {DECODE}", "sglang-1 TP0"),
        (f"\x1b[32m{DECODE}\x1b[0m", "TP0"),
        (DECODE.replace("20:40:02", "20:40:02.123"), "TP0"),
    ],
)
def test_every_version_and_prefix(line: str, rank: str) -> None:
    found = one(line)
    assert isinstance(found, Decode), found
    assert found.head.rank == rank
    assert found.tok_s == 119.32


def test_fields_of_some_versions() -> None:
    more = "pre-allocated usage: 0.02, #retracted-req: 3, cuda graph"
    found = one(DECODE.replace("cuda graph", more).replace("accept rate: 0.63, ", ""))
    assert isinstance(found, Decode)
    assert (found.accept_length, found.accept_rate, found.graph) == (1.90, None, True)
    plain = one(DECODE.replace("accept len: 1.90, accept rate: 0.63, cuda graph: True, ", ""))
    assert isinstance(plain, Decode)
    assert (plain.accept_length, plain.graph, plain.tok_s) == (None, None, 119.32)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "[2026-09-08 00:21:09] Decode batch, #running-req: 1, #full token: 768320, full token usage: 0.83, "
            "mamba num: 4, mamba usage: 0.40, accept len: 2.85, accept rate: 0.62, cuda graph: True, "
            "gen throughput (token/s): 0.73, #queue-req: 0",
            (768320, 2.85, 0.62, True, 0.73),
        ),
        (
            "[2026-07-07 07:11:00 TP0] Decode batch, #running-req: 1, #token: 2048, token usage: 0.00, "
            "npu graph: False, gen throughput (token/s): 18.60, #queue-req: 0",
            (2048, None, None, False, 18.6),
        ),
        (
            "[2025-11-04 05:31:43 DP0 TP0 EP0] Decode batch, #running-req: 1, #full token: 7424, full token usage: "
            "0.00, #swa token: 12, swa token usage: 0.00, accept len: 2.20, accept rate: 0.73, pre-allocated usage: "
            "0.00, #prealloc-req: 0, #transfer-req: 1, #retracted-req: 0, cuda graph: True, gen throughput (token/s): "
            "0.03, #queue-req: 0, ",
            (7424, 2.2, 0.73, True, 0.03),
        ),
        (
            "2025-12-04 20:35:53 INFO 151972 [scheduler_metrics_mixin.py:287] Decode batch. #running-req: 48, #token: "
            "3894, token usage: 0.00, accept len: 1.00, accept rate: 0.11, cuda graph: False, gen throughput "
            "(token/s): 5452.63, #queue-req: 0, ",
            (3894, 1.0, 0.11, False, 5452.63),
        ),
        (
            "Decode batch. #running-req: 3, #pages(active/cached/total): 3/4/5, page ratio: 0.60, gen throughput "
            "(token/s): 42.50, avg_accept_len: 2.50, accept_rate: 0.50, #queue-req: 2",
            (None, 2.5, 0.5, None, 42.5),
        ),
    ],
)
def test_decode_lines_of_other_versions_and_devices(line: str, expected: tuple[object, ...]) -> None:
    found = one(line)
    assert isinstance(found, Decode), found
    assert (found.tokens, found.accept_length, found.accept_rate, found.graph, found.tok_s) == expected


@pytest.mark.parametrize(
    ("words", "others"), [("accept len", "mean accepted"), ("1.90", "-1.90"), ("1.90", "nan"), ("1.90", "")]
)
def test_acceptance_that_cannot_be_read_is_not_taken_for_plain_decoding(words: str, others: str) -> None:
    (entry,) = read(DECODE.replace(words, others))
    assert isinstance(entry, Unread) and entry.reason == "cut short"


@pytest.mark.parametrize("end", range(DECODE.index("Decode batch") + 12, DECODE.index("queue-req: 0") + 11))
def test_a_cut_line_is_never_a_record(end: int) -> None:
    assert [entry.reason for entry in read(DECODE[:end]) if isinstance(entry, Unread)] == ["cut short"]


@pytest.mark.parametrize("line", [PROFILE, SPEC, STATS, CASE.splitlines()[0].decode()])
def test_a_cut_line_keeps_no_value_that_the_whole_does_not_have(line: str) -> None:
    whole = one(line)
    for end in range(len(line)):
        for entry in read(line[:end]):
            if isinstance(entry, Unread):
                continue
            assert type(entry) is type(whole)
            for name in ("accept_length", "accepted", "drafted", "acceptance_rate", "tok_s", "running", "phases"):
                if hasattr(entry, name):
                    assert getattr(entry, name) in (None, getattr(whole, name))


def test_lines_that_ran_into_each_other() -> None:
    second = DECODE.replace("TP0", "TP1").replace("119.32", "118.00")
    cut, found = read(DECODE[:150] + second)
    assert isinstance(cut, Unread)
    assert cut.reason == "cut short"
    assert isinstance(found, Decode)
    assert (found.head.rank, found.tok_s) == ("TP1", 118.0)


def test_a_profile_line() -> None:
    found = one(PROFILE)
    assert isinstance(found, Profile)
    assert found.cycles == 40
    assert found.phases == {"draft": 0.61, "target verify": 29.27, "accept": 0.32}


def test_arguments() -> None:
    found = read(CASE)[0]
    assert isinstance(found, Settings)
    assert not found.resolved
    assert found.values["speculative_attention_mode"] == "decode"
    assert found.values["context_length"] is None
    assert found.values["mem_fraction_static"] == 0.88


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1, b='x, y=2', c=[1, 2], d=None", {"a": 1, "b": "x, y=2", "c": [1, 2], "d": None}),
        ("dtype=torch.bfloat16, m=<Mode.FULL: 2>", {"dtype": "torch.bfloat16", "m": "<Mode.FULL: 2>"}),
        ("s=Config(method='eagle3', n=3)", {"s": {"method": "eagle3", "n": 3}}),
        ("a=b, c", None),
        ("a=(1, b=2", None),
        ("a='x", None),
        ("1a=2", None),
    ],
)
def test_values_are_read_or_kept_as_text(text: str, values: object) -> None:
    assert read_arguments(text) == values


def test_vllm_arguments_and_configuration() -> None:
    asked = one(
        "INFO 07-12 02:33:24 [utils.py:273] non-default args: "
        "{'model': 'x', 'speculative_config': {'method': 'eagle3'}}"
    )
    assert isinstance(asked, Settings)
    assert asked.values == {"model": "x", "speculative_config": {"method": "eagle3"}}
    made = one(
        "(EngineCore pid=2) INFO 04-19 15:31:23 [core.py:107] Initializing a V1 LLM engine (v0.19.2rc1+g4b) with "
        "config: model='x', speculative_config=SpeculativeConfig(method='eagle', num_spec_tokens=3), "
        "dtype=torch.bfloat16, enforce_eager=False, compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>}"
    )
    assert isinstance(made, Settings)
    assert made.resolved
    assert made.values["speculative_config"] == {"method": "eagle", "num_spec_tokens": 3}


def test_vllm_figures() -> None:
    stats, spec = read(f"{STATS}\n{SPEC}")
    assert isinstance(stats, EngineStats)
    assert (stats.head.rank, stats.tok_s, stats.running) == ("Engine 000", 13.0, 1)
    assert isinstance(spec, SpecStats)
    assert (spec.accept_length, spec.accepted, spec.drafted) == (2.77, 626, 1062)
    assert spec.per_position == (0.802, 0.551, 0.415)
    assert spec.acceptance_rate == pytest.approx(0.589)


@pytest.mark.parametrize(
    ("line", "rate", "accepted"),
    [
        ("SpecDecoding metrics: Draft acceptance rate: 100.0%, Accepted: 66 tokens, Drafted: 66 tokens", 1.0, 66),
        (
            "Speculative metrics: Draft acceptance rate: 0.607, System efficiency: 0.510, "
            "Number of speculative tokens: 4, Number of accepted tokens: 32594, "
            "Number of draft tokens: 53716, Number of emitted tokens: 34244.",
            0.607,
            32594,
        ),
        ("SpecDecoding metrics: Mean acceptance length: 2.00, Avg Draft acceptance rate: 33.3%", 0.333, None),
    ],
)
def test_vllm_figures_of_older_versions(line: str, rate: float, accepted: int | None) -> None:
    found = one(line)
    assert isinstance(found, SpecStats)
    if accepted == 32594:
        assert found.accept_length == pytest.approx(34244 / (53716 / 4))
    assert found.acceptance_rate == pytest.approx(rate)
    assert found.accepted == accepted


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("[2026-02-26 20:37:12] The server is fired up and ready to roll!", Ready),
        ("INFO:     Application startup complete.", Ready),
        ("[2025-09-05 20:48:29 TP0] Capture cuda graph end. Time elapsed: 12.11 s.", Capture),
        ("[2026-02-26 20:40:02] Prefill batch, #new-seq: 1, #new-token: 41, #running-req: 0, #queue-req: 0", Prefill),
        ("[2026-02-26 20:40:02 TP1] speculative_attention_mode=decode", Report),
        ("INFO 04-19 15:31:11 [cuda.py:482] Using FLASHINFER attention backend out of potential backends", Report),
        ("Attention backend not explicitly specified. Use fa3 backend by default.", Report),
    ],
)
def test_other_records(line: str, kind: type) -> None:
    assert isinstance(one(line), kind)


LINES = [DECODE, PROFILE, STATS, SPEC, *CASE.decode().splitlines()[:4]]


@given(st.binary(max_size=400))
@example(b"\xff\x00Decode batch, \n\x80")
@settings(max_examples=300, deadline=None)
def test_bytes_of_any_kind_are_counted_and_never_fail(raw: bytes) -> None:
    entries = read(raw)
    assert len(entries) >= raw.count(b"\n") + (not raw.endswith(b"\n") and raw != b"")
    assert all(entry.line if isinstance(entry, Unread) else entry.head.line for entry in entries)


@given(st.lists(st.tuples(st.sampled_from(LINES), st.integers(0, 400), st.integers(0, 400), st.text(max_size=8))))
@settings(max_examples=200, deadline=None)
def test_mangled_lines_are_records_or_counted(pieces: list[tuple[str, int, int, str]]) -> None:
    text = "".join(line[:cut] + junk + line[skip:] for line, cut, skip, junk in pieces)
    tally = Tally()
    for entry in read(text):
        tally.add(entry)
    assert tally.records + sum(tally.unread.values()) >= text.count("\n")
    assert all(len(shown) <= 3 for shown in tally.examples.values())


@given(st.text(max_size=200))
@settings(deadline=None)
def test_arguments_of_any_kind_never_fail(text: str) -> None:
    read_arguments(text)
    assert json.dumps([str(entry) for entry in read_line(1, f"server_args=ServerArgs({text})")])


def test_blank_and_long_lines_are_counted() -> None:
    entries = read(b"\n" + b"x" * (2 * MOST_LINE + 5) + b"\nshort\n")
    assert [(entry.line, entry.reason) for entry in entries if isinstance(entry, Unread)] == [
        (1, "blank"),
        (2, "too long"),
        (2, "too long"),
        (2, "too long"),
        (3, "not about speed"),
    ]


def test_deeply_nested_arguments_are_kept_as_text() -> None:
    found = one(f"server_args=ServerArgs(a={'[' * 5000}{']' * 5000}, b=2)")
    assert isinstance(found, Settings)
    assert found.values["b"] == 2


def test_reading_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_bytes(CASE * 150)
    tracemalloc.start()
    with path.open("rb") as file:
        count = sum(1 for _ in read_log(file))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 150 * CASE.count(b"\n")
    assert peak < 2 << 20
