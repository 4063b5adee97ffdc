"""The doctor on the starting case, and on the same case with other numbers: other numbers, other answers."""

from __future__ import annotations

import gzip
import json
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from outpace.errors import ConfigError
from outpace.lab.doctor import collect
from outpace.lab.doctor.case import choose, measure, subject
from outpace.lab.doctor.client import read_client
from outpace.lab.doctor.collect import runs_of
from outpace.lab.doctor.diagnosis import Diagnosis, diagnose
from outpace.lab.doctor.evidence import Window
from outpace.lab.doctor.finding import Cite, Finding
from outpace.lab.doctor.series import MOST_KEPT, Series

DATA = Path(__file__).parents[2] / "data"
EAGLE = (DATA / "sglang-eagle3-tp8.log").read_text()
PLAIN = (DATA / "sglang-baseline.log").read_text()
CLIENT: dict[str, Any] = json.loads((DATA / "client-bench.json").read_text())


class Clinic:
    """Writes what a case is made of, and asks the doctor."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ask(
        self,
        log: str | bytes = EAGLE,
        *,
        plain: str | None = PLAIN,
        client: dict[str, Any] | None = CLIENT,
        settings: tuple[str, ...] = (),
    ) -> Diagnosis:
        path = self.write("eagle.log", log)
        runs, tally = runs_of(path)
        baseline = [] if plain is None else runs_of(self.write("plain.log", plain))[0]
        figures = None
        if client is not None:
            figures = read_client(self.write("client.json", json.dumps(client)), subject(runs))
        return diagnose(choose(runs, baseline, figures), {path.name: tally}, settings)

    def write(self, name: str, content: str | bytes) -> Path:
        path = self._folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path


@pytest.fixture
def clinic(tmp_path: Path) -> Clinic:
    return Clinic(tmp_path)


def of(found: Diagnosis, question: str) -> Finding:
    (finding,) = [each for each in found.findings if question in each.question]
    return finding


def has(found: Diagnosis, question: str) -> bool:
    return any(question in each.question for each in found.findings)


def throughput(rate: Callable[[int], float], log: str = EAGLE) -> str:
    """The log with other throughputs, by window."""
    windows = iter(range(10**6))
    return re.sub(r"(gen throughput \(token/s\): )[\d.]+", lambda m: f"{m[1]}{rate(next(windows)):.2f}", log)


def phases(draft: float, verify: float, accept: float) -> str:
    total = draft + verify + accept
    line = " | ".join(
        f"{name}: {ms:.2f} ms/cyc ({100 * ms / total:.1f}%)"
        for name, ms in (("Draft", draft), ("Target verify", verify), ("Accept", accept))
    )
    return re.sub(r"(cycles \| ).*", lambda m: m[1] + line, EAGLE)


def client(speculative: float, plain: float = 82.7) -> dict[str, Any]:
    return {"baseline_tok_s": [plain] * 4, "eagle3_tok_s": [speculative] * 4}


# the starting case


def test_the_case_slower_by_27_percent(clinic: Clinic) -> None:
    found = clinic.ask()
    paying = of(found, "pay")
    assert paying.answer == "27% slower"
    assert paying.confidence == "high"
    assert paying.numbers["tok_s"].value == 60.4
    assert "eagle3_decode_attention_tok_s" in paying.text
    assert "27% slower, as the client measured" in found.verdict[0]


def test_the_case_verify_is_97_percent(clinic: Clinic) -> None:
    share = of(clinic.ask(), "which part")
    assert share.answer == "verify, 97%"
    assert share.evidence[0] == Cite("eagle.log", 6, 50)
    assert share.numbers["verify_ms"] == pytest.approx(29.27, abs=0.01)


def test_what_a_finding_rests_on_is_named_once() -> None:
    cites = [Cite("ours"), Cite("plain"), Cite("ours")]
    finding = Finding(question="q", answer="a", text="t", confidence="high", evidence=cites)
    assert finding.as_dict()["evidence"] == ["ours", "plain"]


def test_the_case_3_ms_are_unexplained(clinic: Clinic) -> None:
    residual = of(clinic.ask(), "phases explain")
    assert residual.numbers["unexplained_ms"] == pytest.approx(3.0, abs=0.1)
    assert residual.numbers["accept_length"] == pytest.approx(1766 / 880)
    assert residual.numbers["printed_accept_length"] == pytest.approx(1.92, abs=0.01)
    assert "mean 1.92" in residual.text


def test_the_case_119_is_the_first_window_only(clinic: Clinic) -> None:
    fall = of(clinic.ask(), "fall")
    assert fall.answer == "yes, unexplained"
    assert "119 tok/s is the first window only; later windows fall to 39 (lowest 38.3)" in fall.text
    assert "Accept length and verify stay flat: the profiled phases do not explain it" in fall.text
    assert "shorter than the verify that is part of it" in fall.text


def test_the_case_attention_mode(clinic: Clinic) -> None:
    mode = of(clinic.ask(), "speculative_attention_mode")
    assert mode.answer == "asked for and resolved; no change seen"
    assert "no change in verify time: 29.25 … 29.28 ms" in mode.text
    assert "60.4 tok/s with it, 60.2 in eagle3_default_attention_tok_s" in mode.text


def test_the_case_graphs_cannot_be_known(clinic: Clinic) -> None:
    found = clinic.ask()
    assert of(found, "verify graphed").answer == "cannot be known"
    assert any("graphs disabled" in unknown.measurement for unknown in found.unknown)


def test_the_case_break_even(clinic: Clinic) -> None:
    even = of(clinic.ask(), "break-even")
    assert even.numbers["break_even_accept_length"] == pytest.approx(2.75, abs=0.01)
    assert even.numbers["by_phases"] == pytest.approx(2.50, abs=0.01)
    assert even.numbers["break_even_verify_ms"] == pytest.approx(20.3, abs=0.1)


def test_the_case_advice_is_in_order_and_shows_its_arithmetic(clinic: Clinic) -> None:
    advice = clinic.ask().advice
    assert [each.tok_s for each in advice] == sorted((each.tok_s for each in advice), reverse=True)
    off = next(each for each in advice if "off" in each.action)
    assert off.over_now == pytest.approx(82.7 / 60.4)
    dense = next(each for each in advice if "1.0 plain steps" in each.action)
    assert dense.tok_s == pytest.approx(125, abs=1)
    assert "÷" in dense.arithmetic


def test_the_log_alone_cannot_tell_what_a_setting_does(clinic: Clinic) -> None:
    mode = of(clinic.ask(client=None), "speculative_attention_mode")
    assert mode.answer == "asked for and resolved; effect unknown"
    assert mode.confidence == "low"


def test_the_case_acceptance_rate_is_converted(clinic: Clinic) -> None:
    rate = of(clinic.ask(), "acceptance rate")
    assert rate.numbers["acceptance_rate"] == pytest.approx((1.92 - 1) / 2, abs=0.01)
    assert "accept length ÷ draft tokens" in rate.text


# other numbers, other answers


def test_it_pays(clinic: Clinic) -> None:
    found = clinic.ask(throughput(lambda i: 120.0, phases(0.6, 15.2, 0.3)), client=client(120.0))
    assert of(found, "pay").answer == "1.45× as fast"
    assert found.verdict[0].startswith("Speculation pays")
    assert not any("off" in advice.action for advice in found.advice)


def test_a_cycle_that_is_shorter_than_the_plain_step_in_it_is_doubted(clinic: Clinic) -> None:
    """No accept length is below 1, so no break-even is: one that came out so is a contradiction, and is not used."""
    page = clinic.ask(client={"baseline_tok_s": [82.7] * 5, "eagle3_tok_s": [200.0] * 5})
    found = of(page, "break-even")
    assert found.answer == "none: the figures contradict each other"
    assert found.confidence == "low" and "hardly of one machine" in found.text
    assert of(page, "pay").answer == "2.42× as fast", "the speeds were measured"
    assert of(page, "pay").confidence == "low" and "hardly of one machine" in of(page, "pay").text
    assert "break even" not in " ".join(page.verdict) and "hardly of one machine" in page.verdict[1]
    sound = of(clinic.ask(client={"baseline_tok_s": [82.7] * 3, "eagle3_tok_s": [140.0] * 3}), "break-even")
    assert sound.confidence == "high" and "hardly" not in sound.text


def spread(*speculative: float, plain: tuple[float, ...] = (82.0, 83.0, 82.5, 82.7)) -> dict[str, Any]:
    return {"baseline_tok_s": list(plain), "eagle3_tok_s": list(speculative)}


def test_a_verdict_takes_an_interval(clinic: Clinic) -> None:
    """The median of these is a fifth faster, and says nothing: single runs lie on either side."""
    found = clinic.ask(client=spread(60.0, 98.0, 99.0, 140.0))
    assert of(found, "pay").answer == "too close to tell" and of(found, "pay").confidence == "medium"
    assert found.verdict[0].startswith("Whether speculation pays is too close to tell: 98.5 tok/s against 82.6 plain")
    assert found.verdict[2].startswith("Measure more before anything is changed. About ")
    assert found.verdict[2].endswith(" more runs of either kind would settle it.")
    slow = clinic.ask(client=spread(40.0, 70.0, 75.0, 99.0))
    assert not any("off" in advice.action for advice in slow.advice), "nothing shows that it is slower"


def test_few_runs_conclude_nothing(clinic: Clinic) -> None:
    found = clinic.ask(client=spread(120.0, 121.0, 122.0))
    assert of(found, "pay").answer == "too few to tell"
    assert "too few runs of either kind to tell whether speculation pays" in found.verdict[0]
    assert "An interval takes 4 runs of either kind or more; there are 3." in found.verdict[2]


def test_a_verify_that_varies_as_much_within_runs_as_between_them_has_not_changed(clinic: Clinic) -> None:
    times = iter(range(100))

    def varied(match: re.Match[str]) -> str:
        return f"verify: {25 + 3 * (next(times) % 7):.2f} ms/cyc (96.9%)"

    pattern = r"verify: [\d.]+ ms/cyc \( [\d.]+%\)"
    earlier = re.sub(pattern, varied, EAGLE).replace("attention_mode='decode'", "attention_mode='prefill'")
    mode = of(clinic.ask(earlier + EAGLE), "speculative_attention_mode")
    assert mode.answer == "asked for and resolved; no change seen"


def test_the_same_speed(clinic: Clinic) -> None:
    assert of(clinic.ask(client=client(82.0)), "pay").answer == "the same speed"


def test_a_dear_draft(clinic: Clinic) -> None:
    found = clinic.ask(phases(20.0, 12.5, 0.5), client=client(59.0))
    assert of(found, "which part").answer == "draft, 61%"
    assert "Draft takes 61%" in found.verdict[1]
    assert any("halve the draft" in advice.action for advice in found.advice)
    assert not any("bring verify" in advice.action for advice in found.advice)


def test_phases_that_explain_the_speed(clinic: Clinic) -> None:
    speed = 1766 / 880 / 30.2e-3
    assert of(clinic.ask(client=client(speed)), "phases explain").answer == "yes"


def test_phases_that_take_longer_than_the_cycle(clinic: Clinic) -> None:
    residual = of(clinic.ask(client=client(80.0)), "phases explain")
    assert "too much" in residual.answer
    assert "one of the figures is wrong" in residual.text


def test_a_flat_throughput(clinic: Clinic) -> None:
    flat = of(clinic.ask(throughput(lambda i: 60.0 + i % 3)), "fall")
    assert flat.answer == "no"
    assert "it stays" in flat.text


def test_noise_is_no_fall(clinic: Clinic) -> None:
    """Its last windows are a fifth slower at the median, and some of them the fastest."""
    noisy = (60.0, 30.0, 90.0, 61.0, 59.0, *[60.0] * 13, 48.0, 30.0, 90.0, 47.0, 49.0)
    fall = of(clinic.ask(throughput(lambda i: noisy[i % len(noisy)])), "fall")
    assert fall.answer == "no" and fall.numbers["ratio"] < 0.85
    assert fall.numbers["ratio_95"][1] > 1.0


def test_a_fall_that_verify_explains(clinic: Clinic) -> None:
    cycles = iter(range(100))

    def slower(match: re.Match[str]) -> str:
        return f"verify: {20 + next(cycles):.2f} ms/cyc (96.9%)"

    log = re.sub(r"verify: [\d.]+ ms/cyc \( [\d.]+%\)", slower, EAGLE)
    fall = of(clinic.ask(log), "fall")
    assert fall.answer == "yes"
    assert "What changed with it: verify (+" in fall.text


def test_a_setting_that_nobody_asked_for(clinic: Clinic) -> None:
    log = EAGLE.replace(", speculative_attention_mode='decode'", "")
    found = clinic.ask(log, client=client(60.0))
    assert of(found, "speculative_attention_mode").answer == "not asked for"
    assert not any("applied" in unknown.question for unknown in found.unknown)


def test_a_setting_that_was_resolved_otherwise(clinic: Clinic) -> None:
    log = EAGLE + "[2026-02-26 20:41:00 TP0] speculative_attention_mode: prefill\n"
    mode = of(clinic.ask(log), "speculative_attention_mode")
    assert mode.answer.startswith("asked for, resolved otherwise")
    assert "reported as prefill (eagle.log:51)" in mode.text


def test_a_setting_that_changed_verify_between_runs(clinic: Clinic) -> None:
    earlier = phases(0.6, 40.0, 0.3).replace("attention_mode='decode'", "attention_mode='prefill'")
    mode = of(clinic.ask(earlier + EAGLE), "speculative_attention_mode")
    assert mode.answer == "asked for and resolved; a change was seen"
    assert "With prefill verify took 40.00 ms, with decode 29.27" in mode.text


def test_any_setting_can_be_asked_about(clinic: Clinic) -> None:
    found = clinic.ask(settings=("attention_backend", "no_such_setting"))
    assert of(found, "attention_backend").answer.startswith("asked for and resolved")
    assert of(found, "no_such_setting").answer == "not asked for"


def test_verify_graphs_where_no_forward_was_graphed(clinic: Clinic) -> None:
    assert of(clinic.ask(EAGLE.replace("cuda graph: True", "cuda graph: False")), "verify graphed").answer == "no"


def test_without_a_client_the_logs_windows_count(clinic: Clinic) -> None:
    found = clinic.ask(client=None)
    paying = of(found, "pay")
    assert paying.confidence == "medium"
    assert paying.numbers["tok_s"].kind == "log"
    assert paying.numbers["ratio"] == pytest.approx(57.4 / 82.45, abs=0.01)
    assert "by the log's windows" in found.verdict[0]
    assert any("client" in unknown.measurement for unknown in found.unknown)


def test_without_a_baseline_it_cannot_be_said(clinic: Clinic) -> None:
    found = clinic.ask(plain=None, client=None)
    assert of(found, "pay").answer == "unknown"
    assert found.advice == []
    assert any("without speculation" in unknown.measurement for unknown in found.unknown)
    assert of(found, "which part").answer == "verify, 97%"


def test_figures_of_two_kinds_are_said_to_be(clinic: Clinic) -> None:
    found = clinic.ask(client={"eagle3_tok_s": 60.0})
    assert of(found, "pay").confidence == "low"
    assert "its own by the client, plain's by the log" in found.verdict[0]
    assert found.verdict[0].startswith("Whether speculation pays cannot be told")
    assert "measure both at the same place" in found.verdict[2]


def test_a_plain_log_has_nothing_to_judge(clinic: Clinic) -> None:
    found = clinic.ask(PLAIN, plain=None, client=None)
    assert of(found, "pay").answer == "not used"
    assert of(found, "decode graphed").answer == "decode was graphed"


def test_a_plain_start_in_the_same_log_is_the_baseline(clinic: Clinic) -> None:
    found = clinic.ask(PLAIN + EAGLE, plain=None, client=None)
    assert of(found, "pay").numbers["plain_tok_s"].value == pytest.approx(82.45, abs=0.1)


def test_another_batch_size_is_no_baseline(clinic: Clinic) -> None:
    other = PLAIN.replace("#running-req: 1,", "#running-req: 8,")
    assert of(clinic.ask(plain=other, client=None), "pay").answer == "unknown"


def test_several_ranks_are_not_added_up(clinic: Clinic) -> None:
    decode = re.compile(r"^(.*) TP0(\] Decode.*)$", re.MULTILINE)
    log = decode.sub(r"\1 TP0\2\n\1 TP1\2", EAGLE)
    runs, _ = runs_of(clinic.write("ranks.log", log))
    assert (runs[0].num_ranks, runs[0].rank, runs[0].counted) == (2, "TP0", None)
    assert sum(window.count for window in runs[0].windows) == 22
    assert "2 ranks print windows; those of TP0 were taken" in of(clinic.ask(log), "pay").text


@pytest.mark.parametrize(
    ("text", "num_lines"),
    [
        ("", 0),
        ("\n\n", 2),
        (b"\x00\xff\xfe\n" * 5000, 5000),
        ("nothing of interest\n" * 50, 50),
        ("In this README, attention_backend = fa3 is only spoken of.\n" * 3, 3),
    ],
)
def test_what_is_no_log_is_refused_with_what_was_looked_for(clinic: Clinic, text: str | bytes, num_lines: int) -> None:
    with pytest.raises(
        ConfigError, match=f"no log of SGLang or vLLM: none of its {num_lines:,} lines is .*Decode batch"
    ):
        clinic.ask(text, client=None, plain=None)
    with pytest.raises(ConfigError, match=r"plain\.log is no log"):
        clinic.ask(plain="nothing of interest")


@pytest.mark.parametrize("log", [EAGLE[:2000], EAGLE.splitlines()[0], "[2026-02-26 20:32:05 TP0] Decode batch, #run"])
def test_a_log_without_a_decode_window_still_has_a_page(clinic: Clinic, log: str) -> None:
    found = clinic.ask(log, client=None, plain=None)
    assert len(found.verdict) == 3
    assert of(found, "pay").confidence == "low"
    assert of(found, "pay").answer == "unknown"
    assert found.unknown
    assert json.dumps(found.as_dict())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(EAGLE.encode()), "is packed with gzip, no text; give what gunzip makes of it"),
        (b"PK\x03\x04and so on", "is a zip file"),
        (EAGLE.encode("utf-16"), "is UTF-16, no text; give what iconv -f utf-16 -t utf-8 makes of it"),
    ],
    ids=["gzip", "zip", "utf-16"],
)
def test_a_packed_log_is_said_to_be_packed(clinic: Clinic, content: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        clinic.ask(content)


def vllm(per_position: str, length: float, rate: float = 90.0) -> str:
    head = "(APIServer pid=7) INFO 08-04"
    lines = [
        f"{head} 20:50:00 [utils.py:273] non-default args: {{'model': 'x', "
        "'speculative_config': {'method': 'eagle3', 'num_speculative_tokens': 3}}"
    ]
    for i in range(12):
        lines += [
            f"{head} 20:51:{10 + i} [loggers.py:310] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
            f"Avg generation throughput: {rate} tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%",
            f"{head} 20:51:{10 + i} [metrics.py:120] SpecDecoding metrics: Mean acceptance length: {length}, "
            f"Accepted throughput: 60.0 tokens/s, Drafted throughput: 90.0 tokens/s, Accepted: 600 tokens, "
            f"Drafted: 900 tokens, Per-position acceptance rate: {per_position}, Avg Draft acceptance rate: 50.0%",
        ]
    return "\n".join(lines)


def test_a_vllm_log(clinic: Clinic) -> None:
    found = clinic.ask(vllm("0.802, 0.551, 0.415", 2.77), plain=None, client=client(90.0, plain=50.0))
    assert of(found, "pay").answer == "1.80× as fast"
    assert of(found, "wired").answer == "no sign against it"
    assert not has(found, "speculative_attention_mode")
    assert of(found, "wired").numbers["per_position"] == [0.802, 0.551, 0.415]
    assert of(found, "break-even").numbers["break_even_accept_length"] == pytest.approx(2.77 * 50 / 90)
    assert any("draft and verify a cycle" in unknown.measurement for unknown in found.unknown)


def test_vllm_lines_without_an_accept_length_are_not_taken_for_plain_decoding(clinic: Clinic) -> None:
    """Those of 2025 tell a rate alone; with k from the arguments it is a length."""
    text = re.sub(r"Mean acceptance length: [\d.]+, ", "", vllm("0.8, 0.6, 0.4", 2.8))
    (run,), _ = runs_of(clinic.write("vllm.log", text))
    assert run.windows and all(window.speculative for window in run.windows)
    assert run.total is not None and run.total.work / run.total.count == pytest.approx(1 + 3 * 0.5)
    (run,), _ = runs_of(clinic.write("vllm.log", text.replace("non-default args", "other args")))
    assert not run.windows, "neither plain ones nor guessed ones"


def test_a_collapse_at_position_0_is_reported_as_wiring(clinic: Clinic) -> None:
    wired = of(clinic.ask(vllm("0.112, 0.021, 0.003", 1.14), plain=None, client=None), "wired")
    assert wired.answer == "suspect"
    assert "the layers that it taps" in wired.text


def test_an_accept_rate_of_newer_versions(clinic: Clinic) -> None:
    """They print accepted ÷ drafted."""
    rate = re.sub(r"accept len: ([\d.]+), accept rate: [\d.]+", _of_drafts, EAGLE)
    found = of(clinic.ask(rate), "acceptance rate")
    assert found.answer == "0.46"
    assert "it follows accepted ÷ drafted" in found.text


def _of_drafts(match: re.Match[str]) -> str:
    return f"accept len: {match[1]}, accept rate: {(float(match[1]) - 1) / 2:.2f}"


def test_a_clients_stream_says_nothing_of_a_batchs_cycle(clinic: Clinic) -> None:
    batch = EAGLE.replace("#running-req: 1,", "#running-req: 8,")
    found = clinic.ask(batch, plain=None)
    assert of(found, "pay").answer == "27% slower"
    assert not has(found, "break-even")
    assert not has(found, "phases explain")
    assert any("at 8 rows" in unknown.question for unknown in found.unknown)


# what a client may bring


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"eagle_tok_s": [60.0], "eagle_b_tok_s": [61.0]}, "say which: --client-run"),
        ({"plain_tok_s": 1.0, "baseline_tok_s": 2.0}, "say which: --client-baseline"),
        ({"note": "nothing"}, "holds no speeds"),
        ({"eagle_tok_s": ["fast"]}, "must be speeds above 0"),
    ],
)
def test_a_clients_figures_are_never_guessed(clinic: Clinic, data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        clinic.ask(client=data)


def test_labels_can_be_named(clinic: Clinic) -> None:
    path = clinic.write("client.json", json.dumps({"a_tok_s": [60.0], "b_tok_s": [80.0]}))
    runs, _ = runs_of(clinic.write("eagle.log", EAGLE))
    client = read_client(path, runs[0], "a_tok_s", "b_tok_s")
    measures = measure(choose(runs, [], client))
    assert measures.speed is not None
    assert measures.plain is not None
    assert (measures.speed.value, measures.plain.value) == (60.0, 80.0)
    with pytest.raises(ConfigError, match="has no 'c_tok_s'"):
        read_client(path, runs[0], "c_tok_s")


# long histories


def test_a_long_history_keeps_its_shape_and_its_sums() -> None:
    series: Series[Window] = Series()
    for i in range(10_001):
        series.add(Window(Cite("log", i + 1, i + 1), 1, 2.0, 2.0 / (100.0 - i / 200.0), None, True))
    kept = series.items
    assert len(kept) <= MOST_KEPT
    assert sum(window.count for window in kept) == series.count == 10_001
    assert len({window.count for window in kept[:-1]}) == 1
    assert kept[0].tok_s > 99.0
    assert kept[-1].tok_s < 51.0


@pytest.mark.parametrize("piped", [False, True])
def test_reading_a_long_log_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, piped: bool) -> None:
    monkeypatch.setattr(collect, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(collect, "SHOWN_EVERY_S", 0.0)
    path, text = tmp_path / "long.log", EAGLE + "nothing\n" * 9_000
    if piped:
        os.mkfifo(path)
        Thread(target=path.write_text, args=(text,), daemon=True).start()
    else:
        path.write_text(text)
    told: list[str] = []
    runs_of(path, told.append)
    assert len(told) >= 8 and all(each.startswith("reading long.log: ") for each in told)
    if piped:
        assert told[:2] == ["reading long.log: 1,024 lines", "reading long.log: 2,048 lines"]
    else:
        shares = [int(each.removeprefix("reading long.log: ").removesuffix("%")) for each in told]
        assert shares == sorted(shares) and shares[0] < shares[-1] <= 100


def test_reading_a_short_log_tells_nothing(clinic: Clinic) -> None:
    told: list[str] = []
    runs_of(clinic.write("eagle.log", EAGLE), told.append)
    assert not told


@pytest.mark.slow
def test_a_log_of_50_mb_takes_seconds_and_no_memory(tmp_path: Path) -> None:
    lines = EAGLE.splitlines(keepends=True)
    access = '[2026-02-26 20:40:02] INFO:     127.0.0.1:40052 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    stretch = "".join(line + 3 * access for line in lines[4:])
    path = tmp_path / "long.log"
    with path.open("w") as file:
        file.write("".join(lines[:4]))
        for _ in range(50_000_000 // len(stretch)):
            file.write(stretch)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, os.times().user
    runs, tally = runs_of(path)
    assert os.times().user - began < 100.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
    assert tally.records > 100_000
    assert runs[0].counted is not None
