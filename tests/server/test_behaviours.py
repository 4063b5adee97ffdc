"""What users of other engines had to report, row by row: each name begins with its row in the list of behaviours.

The served model nearly always goes through one text over and over, and its drafter knows the text, but for two letters
of it: runs of accepted tokens are long, and end where a test knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import binomtest
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.curious import asking_the_host
from engine.test_drafter_cache import draft_from_scratch, watch
from engine.test_lossless import answers, prompts
from engine.tiny import engine, tiny_drafter, tiny_target
from outpace import LLM, SamplingParams
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import save_drafter
from outpace.models.registry import load_target
from outpace.models.source import locate
from outpace.server.engine_client.totals import Totals
from outpace.server.monitoring.reporting import DOUBT_AFTER, wiring_doubt
from server.asking.test_structured import SPACES
from server.chain import END, WIDTH, make_chain, make_chain_drafter
from server.running import Server, serving, until

TEXT = "abcdefgh日ijk😀lmnop. "
ENDING = ["Q", "R", "S", "T", "U", "V", "W", END]
LIMIT = 200
"""Of the context."""
DRAFTER_LIMIT = 120
ENGINE = (
    *("--dtype", "float32", "--control", "fixed", "--k", "4"),
    *("--max-rows", "4", "--page-size", "4", "--num-pages", "300"),
)
PATH = "/v1/completions"


def going_on(length: int, behind: str = " ") -> str:
    """The text from behind one of its characters."""
    start = TEXT.index(behind) + 1
    return "".join(islice(cycle(TEXT[start:] + TEXT[:start]), length))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its drafter, and one that is wrong everywhere and does not say which layers it taps."""
    folder = tmp_path_factory.mktemp("behaviours")
    torch.manual_seed(7)
    follows = make_chain(folder / "model", [TEXT, ENDING])
    wrong = {ids for letter in "dl" for ids in token_ids(folder / "model", letter)}
    make_chain_drafter(folder / "model", folder / "drafter", follows, wrong, max_positions=DRAFTER_LIMIT)
    make_chain_drafter(folder / "model", folder / "useless", follows, range(WIDTH))
    config = json.loads((folder / "useless" / "config.json").read_text())
    for name in ("eagle_config", "eagle_aux_hidden_state_layer_ids"):
        config.pop(name, None)
    (folder / "useless" / "config.json").write_text(json.dumps(config))
    return folder


def token_ids(model: Path, text: str) -> list[int]:
    from outpace.models.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_directory(model)
    assert tokenizer is not None
    return tokenizer.encode(text)


@pytest.fixture(scope="module")
def talker(folder: Path) -> Iterator[Server]:
    flags = (*ENGINE, "--max-context", str(LIMIT), "--max-concurrency", "4")
    with serving(folder / "model", "--drafter", str(folder / "drafter"), *flags) as running:
        yield running
        assert running.held_pages() == 0
        assert running.state()["engine_deaths"] == 0


def ask(server: Server, prompt: Any = " ", **options: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 40} | options
    response = server.post(PATH, body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.fixture(scope="module")
def theirs(folder: Path) -> PreTrainedModel:
    """The same target as transformers reads it."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    return model.eval().requires_grad_(False)


def numbers(value: Any) -> list[float]:
    """All numbers in an answer's log-probabilities, in order."""
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in numbers(value[key])]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [float(value)] if isinstance(value, int | float) else []


def on_and_off(server: Server, prompt: Any = " ", **options: Any) -> dict[str, Any]:
    """The answer with drafts, which is the plain one: text, why it ended, usage, log-probabilities."""
    on, off = (ask(server, prompt, speculation=policy, **options) for policy in ("auto", "off"))
    assert off["usage"]["speculation"]["drafted"] == 0
    for one, other in zip(on["choices"], off["choices"], strict=True):
        assert (one["text"], one["finish_reason"]) == (other["text"], other["finish_reason"])
        for field in ("logprobs", "prompt_logprobs"):
            mine, theirs = one.get(field), other.get(field)
            assert numbers(mine) == pytest.approx(numbers(theirs), abs=1e-3)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert on["usage"][name] == off["usage"][name]
    return on


def first(answer: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = answer["choices"][0]
    return choice


@pytest.mark.parametrize("place", [2, 5, 7, 8])
@pytest.mark.parametrize("room", [0, 1])
def test_01_the_first_event_in_a_run_wins(talker: Server, folder: Path, place: int, room: int) -> None:
    stop = token_ids(folder / "model", TEXT[place - 1])[-1]
    num_tokens = len(going_on(place).encode())
    answer = on_and_off(talker, stop_token_ids=[stop], max_tokens=num_tokens + room)
    assert (first(answer)["text"], first(answer)["finish_reason"]) == (going_on(place - 1), "stop")
    assert answer["usage"]["completion_tokens"] == num_tokens
    early = on_and_off(talker, stop_token_ids=[stop], max_tokens=num_tokens - 1)
    assert first(early)["finish_reason"] == "length"


@pytest.mark.parametrize("length", [1, 3, 6])
def test_02_a_stop_string_is_found_wherever_it_lies(talker: Server, length: int) -> None:
    for start in range(0, 18, 3):
        stop = going_on(40)[start : start + length]
        answer = on_and_off(talker, stop=[stop, "never there"])
        assert (first(answer)["text"], first(answer)["finish_reason"]) == (going_on(start), "stop")


def test_03_everything_is_cut_at_the_same_place(talker: Server) -> None:
    for stop in ("gh", "日", "k😀l", "p"):
        answer = on_and_off(talker, stop=[stop], logprobs=1, include_stop_str_in_output=True)
        written = going_on(40)[: going_on(40).index(stop) + len(stop)]
        num_tokens = len(written.encode())
        assert first(answer)["text"] == written
        assert answer["usage"]["completion_tokens"] == num_tokens
        assert [len(column) for column in first(answer)["logprobs"].values()] == [num_tokens] * 4


def test_04_the_end_among_the_drafts_ends_it(talker: Server) -> None:
    answer = on_and_off(talker, "Q")
    assert (first(answer)["text"], first(answer)["finish_reason"]) == ("RSTUVW", "stop")
    assert answer["usage"]["completion_tokens"] == 7
    told = answer["usage"]["speculation"]
    assert (told["cycles"], told["accept_length"]) == (2, 3.0)  # 6 tokens behind the one that prefill chose
    assert (told["drafted_at"], told["accepted_at"]) == ([2, 1, 1, 1], [2, 1, 1, 1])  # none behind the end


def test_05_a_drafter_that_ends_before_the_context_costs_only_speed(talker: Server) -> None:
    answer = on_and_off(talker, max_tokens=LIMIT - 1)
    assert answer["usage"]["total_tokens"] == LIMIT and first(answer)["finish_reason"] == "length"
    told = answer["usage"]["speculation"]
    assert told["cycles"] + told["accepted"] == LIMIT - 2  # prefill chose one, and so did the prompt's author
    assert 0.6 * DRAFTER_LIMIT < told["accepted"] < DRAFTER_LIMIT
    num_plain = told["cycles"] - told["drafted_at"][0]
    assert LIMIT - DRAFTER_LIMIT - 2 <= num_plain <= LIMIT - DRAFTER_LIMIT  # behind the limit nothing is drafted


def test_06_a_prompt_that_leaves_room_for_one_token(talker: Server) -> None:
    answer = on_and_off(talker, [5] * (LIMIT - 1))
    assert (answer["usage"]["completion_tokens"], first(answer)["finish_reason"]) == (1, "length")
    refused = talker.post(PATH, {"model": "tiny", "prompt": [5] * LIMIT})
    assert refused.status_code == 400 and f"{LIMIT - 1}" in refused.json()["error"]["message"]


FIELDS: dict[str, dict[str, Any]] = {
    "07 logprobs": {"logprobs": 5},
    "07 logprobs, sampled": {"logprobs": 0, "temperature": 1.0, "seed": 4},
    "08 prompt_logprobs": {"prompt_logprobs": 3},
    "08 echo": {"echo": True, "logprobs": 2},
    "09 presence": {"presence_penalty": 2.0, "temperature": 1.2},
    "09 frequency": {"frequency_penalty": 1.7, "temperature": 1.2, "logprobs": 1},
    "09 repetition": {"repetition_penalty": 1.8, "temperature": 0.9},
    "09 all three": {"presence_penalty": -1.0, "frequency_penalty": 0.9, "repetition_penalty": 1.4, "temperature": 0.9},
    "10 min_p": {"min_p": 0.02, "temperature": 1.5},
    "10 top_k, top_p": {"top_k": 7, "top_p": 0.8, "temperature": 1.8},
    "10 logit_bias": {"logit_bias": {"69": 6.0, "70": -6.0, "75": -100.0}},
    "10 logit_bias, sampled": {"logit_bias": {"69": 6.0, "257": -100.0}, "temperature": 1.2},
    "10 bad_words": {"bad_words": [[70], [71, 72]]},
    "10 min_tokens": {"min_tokens": 20, "prompt": "Q", "max_tokens": 30},
    "10 ignore_eos": {"ignore_eos": True, "prompt": "Q"},
}


@pytest.mark.parametrize("name", FIELDS)
def test_07_to_10_fields_are_exact_at_every_position(talker: Server, name: str) -> None:
    neutral = ("prompt", "seed", "temperature", "max_tokens")
    changed = 0
    for seed, prompt in enumerate((" ", "x 日")):
        options = {"prompt": prompt, "seed": seed} | FIELDS[name]
        answer = on_and_off(talker, **options)
        bare = ask(talker, **{key: value for key, value in options.items() if key in neutral})
        changed += first(answer)["text"] != first(bare)["text"]
    assert changed or "logprobs" in name


@pytest.mark.parametrize("policy", ["auto", "off"])
def test_07_and_08_log_probabilities_are_the_targets(
    talker: Server, folder: Path, theirs: PreTrainedModel, policy: str
) -> None:
    prompt = token_ids(folder / "model", "x 日mn")
    answer = first(ask(talker, prompt, prompt_logprobs=0, logprobs=0, speculation=policy))
    written = token_ids(folder / "model", answer["text"])
    expected = theirs(torch.tensor([prompt + written])).logits[0].log_softmax(-1)
    found = [expected[place, token].item() for place, token in enumerate((prompt + written)[1:])]
    told = [entry["logprob"] for entry in answer["prompt_logprobs"][1:]] + answer["logprobs"]["token_logprobs"]
    assert len(told) == len(prompt) - 1 + 40
    assert told[: len(found)] == pytest.approx(found, abs=1e-3)
    assert len(found) > 40


def test_07_in_bf16_a_verify_differs_by_no_more_than_rounding(talker: Server, folder: Path) -> None:
    """On a forced prefix: a choice leaves one text, and its log-probabilities are those before it was masked."""
    text = going_on(30)
    asked = {"structured_outputs": {"choice": [text]}, "logprobs": 0, "max_tokens": 60}

    def told(server: Server, policy: str) -> tuple[list[float], int]:
        answer = ask(server, speculation=policy, **asked)
        assert first(answer)["text"] == text
        return first(answer)["logprobs"]["token_logprobs"], answer["usage"]["speculation"]["accepted"]

    def apart(one: list[float], other: list[float]) -> float:
        return max(abs(a - b) for a, b in zip(one, other, strict=True))

    exact, _ = told(talker, "off")
    flags = (*ENGINE, "--max-context", str(LIMIT), "--dtype", "bfloat16")
    with serving(folder / "model", "--drafter", str(folder / "drafter"), *flags) as server:
        (verified, num_accepted), (plain, _) = (told(server, policy) for policy in ("auto", "off"))
    assert num_accepted > 10
    rounding = apart(plain, exact)
    assert 0.0 < rounding < 0.1
    assert apart(verified, plain) <= 2.0 * rounding, "either may be so far from what is exact"


def test_11_a_seed_gives_one_answer_whatever_else_happens(talker: Server) -> None:
    policies = ["off", "auto", {"max_k": 1}, {"max_k": 3}] * 3
    asked = {"temperature": 1.3, "seed": 11, "logprobs": 0}
    with ThreadPoolExecutor(12) as pool:
        others = [pool.submit(ask, talker, "other", temperature=1.0, seed=i, max_tokens=20 + i) for i in range(6)]
        told = list(pool.map(lambda policy: first(ask(talker, speculation=policy, **asked)), policies))
    assert len({choice["text"] for choice in told}) == 1
    for choice in told:
        assert numbers(choice["logprobs"]) == pytest.approx(numbers(told[0]["logprobs"]), abs=1e-3)
    for seed, other in enumerate(others):
        alone = ask(talker, "other", temperature=1.0, seed=seed, max_tokens=20 + seed)
        assert first(other.result())["text"] == first(alone)["text"]


@pytest.mark.parametrize("policy", ["auto", "off"])
def test_12_samples_have_the_targets_distribution(
    talker: Server, folder: Path, theirs: PreTrainedModel, policy: str
) -> None:
    """At a place that was drafted, and behind tokens that were drafted otherwise."""
    temperature = 1.5
    ids = {letter: token_ids(folder / "model", letter)[-1] for letter in map(chr, range(33, 127))}
    behind = theirs(torch.tensor([*ids.values()])[:, None]).logits[:, -1].argmax(-1).tolist()
    letters = {token: letter for letter, token in ids.items()}
    follows = {letter: letters[token] for letter, token in zip(ids, behind, strict=True) if token in letters}
    chance = theirs(torch.tensor([token_ids(folder / "model", " a")])).logits[0, -1].div(temperature).softmax(-1)
    runs: list[list[str]] = []
    for seed in (1000, 1001):
        asked = {"temperature": temperature, "max_tokens": 6, "n": 128, "seed": seed, "logprobs": 0}
        answer = ask(talker, speculation=policy, **asked)
        runs += [choice["logprobs"]["tokens"] for choice in answer["choices"]]
    drafted = [run[1] == follows["a"] for run in runs if run[0] == "a"]
    expected = chance[ids[follows["a"]]].item()
    assert 0.3 < expected < 0.8 and len(drafted) > 100
    assert binomtest(sum(drafted), len(drafted), expected).pvalue > 1e-6
    triples = [triple for run in runs for triple in zip(run, run[1:], run[2:], strict=False)]
    surprised = [y == follows[x] for w, x, y in triples if w in follows and x in follows and x != follows[w]]
    assert len(surprised) > 30
    assert binomtest(sum(surprised), len(surprised), expected).pvalue > 1e-6


@pytest.mark.parametrize("prompt", [" ", "x", "Q", "日本語", "abc😀", "\x00\x01", "a" * 100])
def test_13_greedy_is_plain_decoding(talker: Server, prompt: str) -> None:
    assert on_and_off(talker, prompt, max_tokens=60)["usage"]["speculation"]["cycles"] < 60


def test_14_choices_are_independent(talker: Server) -> None:
    asked = {"temperature": 1.5, "seed": 3}
    two = on_and_off(talker, n=2, **asked)
    texts = [choice["text"] for choice in two["choices"]]
    assert texts[0] != texts[1]
    assert texts[0] == first(ask(talker, **asked))["text"]
    assert texts[0] == first(ask(talker, n=3, **asked))["text"]


LISTED = {"type": "array", "items": {"enum": [TEXT, "mnop"]}, "minItems": 2, "maxItems": 2}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_15_a_schema_masks_every_draft_and_forgets_refused_ones(talker: Server, temperature: float) -> None:
    """The drafter goes on with the text that is always said, behind which the schema wants something else."""
    asked = {"structured_outputs": {"json": LISTED}, "logprobs": 2, "seed": 15, "max_tokens": 120}
    answer = on_and_off(talker, temperature=temperature, logit_bias=SPACES, **asked)
    assert first(answer)["finish_reason"] == "stop"
    jsonschema.validate(json.loads(first(answer)["text"]), LISTED)
    told = answer["usage"]["speculation"]
    assert told["drafted"] > told["accepted"] > 10  # drafts were refused, and whole runs stood within the text
    cut = on_and_off(talker, temperature=temperature, logit_bias=SPACES, **asked | {"max_tokens": 20})
    assert first(answer)["text"].startswith(first(cut)["text"]) and first(cut)["finish_reason"] == "length"


def test_16_preemption_drops_drafts_and_changes_nothing(folder: Path) -> None:
    model, drafter = str(folder / "model"), str(folder / "drafter")
    options: dict[str, Any] = {"dtype": "float32", "page_size": 4, "max_rows": 4, "max_context": 100}
    params = [SamplingParams(max_tokens=60, temperature=t, seed=i) for i, t in enumerate((0.0, 1.0, 0.7, 0.0))]
    batch = [" ", "x", "日", "abc"]
    plain = LLM(model, drafter=None, num_pages=200, **options).generate(batch, params)
    tight = LLM(model, drafter=drafter, num_pages=40, k=4, control="fixed", **options)
    assert answers(tight.generate(batch, params)) == answers(plain)
    assert tight.engine.scheduler.num_preempted > 0
    assert tight.engine.pages.num_free + tight.engine.pages.num_cached == tight.engine.pages.num_usable


def test_17_a_prefix_that_the_drafter_has_not_seen_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a drafter that attends: what it drafts behind a prefix is what it drafts from scratch."""
    target = tiny_target(seed=17)
    drafter = tiny_drafter(target, seed=18)
    llm = engine(target, drafter)
    seen = watch(llm, monkeypatch)
    prompt = prompts(1, seed=19)[0] * 4
    off, on = SamplingParams(max_tokens=10, max_k=0), SamplingParams(max_tokens=10)
    plain, drafting = (llm.generate([prompt], params)[0] for params in (off, on))
    assert plain.token_ids == drafting.token_ids
    assert seen()
    for tokens, drafts in seen():
        assert drafts == draft_from_scratch(target, drafter, tokens, 4)[: len(drafts)]


def test_18_prefixes_are_reused_as_without_drafts(talker: Server) -> None:
    def reused(policy: str, letter: str) -> int:
        prompt = letter + going_on(100)
        for _ in range(2):
            answer = ask(talker, prompt, speculation=policy, max_tokens=8)
        num: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return num

    assert reused("auto", "X") >= reused("off", "Y") > 80


def test_19_a_reduced_vocabulary_without_d2t_is_refused_at_start(folder: Path, tmp_path: Path) -> None:
    target = load_target(locate(str(folder / "model")), dtype=torch.float32, device="cpu").model
    save_drafter(Drafter.create(target, draft_ids=torch.arange(0, WIDTH, 2)), tmp_path / "reduced")
    (weights,) = (tmp_path / "reduced").glob("*.safetensors")
    save_file({k: v for k, v in load_file(weights).items() if k not in ("d2t", "t2d")}, weights)
    server = Server(folder / "model", "--drafter", str(tmp_path / "reduced"))
    assert server.process.wait(60) == 2
    until(lambda: any("there is no d2t" in line for line in server.other), server)


def test_20_default_taps_are_said_and_a_collapse_is_reported_as_wiring(folder: Path) -> None:
    flags = ("--drafter", str(folder / "useless"), *ENGINE, "--log-interval", "0.1")
    with serving(folder / "model", *flags) as server:
        drafter = server.state()["settings"]["drafter"]
        assert drafter["aux_boundaries"] == [0, 1, 2] and "default" in drafter["aux_source"]
        ask(server, max_tokens=DOUBT_AFTER + 50)
        line = server.event("drafter hardly ever right")
        assert line["level"] == "warning" and "wired wrongly" in line["likely"] and "--aux-boundaries" in line["remedy"]
    assert wiring_doubt(Totals(drafted_at=(DOUBT_AFTER,), accepted_at=(DOUBT_AFTER // 10,))) is None


@pytest.mark.gpu
def test_21_drafts_that_cannot_be_captured_leave_the_targets_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target(seed=21)
    target.model.to("cuda")
    asked = asking_the_host(monkeypatch, lambda cycle: cycle.k > 0)
    llm = engine(target, tiny_drafter(target).to("cuda"))
    batch = prompts(3, seed=21)
    on, off = (llm.generate(batch, SamplingParams(max_tokens=20, max_k=k)) for k in (None, 0))
    assert answers(on) == answers(off)
    graphs = llm.describe()["graphs"]
    assert asked and graphs["captured"] > 0
    assert graphs["eager"] and all(eager["k"] and eager["why"] for eager in graphs["eager"])


@pytest.mark.parametrize("policy", ["auto", "off"])
def test_22_characters_are_streamed_whole_and_once(talker: Server, policy: str) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": " ", "temperature": 0, "max_tokens": 80}
    chunks = talker.client().completions.create(**asked, stream=True, extra_body={"speculation": policy})
    pieces = [chunk.choices[0].text for chunk in chunks]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == going_on(len("".join(pieces))) and "".join(pieces).count("😀") > 1


def test_23_one_of_two_streams_is_given_up(talker: Server) -> None:
    """The one that is kept ends first: whatever the other then held, it would hold for ever."""
    asked: dict[str, Any] = {"model": "tiny", "temperature": 0, "stream": True}
    create = talker.client().completions.create
    kept, given_up = (create(prompt=prompt, max_tokens=most, **asked) for prompt, most in ((" ", 60), ("x", 190)))
    pieces = [next(iter(kept)).choices[0].text]
    next(iter(given_up))
    given_up.close()
    pieces += [chunk.choices[0].text for chunk in kept]
    assert "".join(pieces) == first(ask(talker, max_tokens=60))["text"]
    until(lambda: talker.state()["running"] == 0)
    assert talker.held_pages() == 0


def test_24_a_drafter_that_is_not_there_is_refused_at_start(folder: Path) -> None:
    server = Server(folder / "model", "--drafter", str(folder / "drafer"))
    assert server.process.wait(60) == 2
    until(lambda: any("there is no model" in line and "drafer" in line for line in server.other), server)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"prompt": [5, WIDTH]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1 << 40]}, "prompt"),
        ({"stop_token_ids": [WIDTH]}, "stop_token_ids"),
        ({"logit_bias": {str(WIDTH): 1.0}}, "logit_bias"),
        ({"bad_words": [[WIDTH]]}, "bad_words"),
    ],
)
def test_25_a_token_id_that_there_is_not_is_that_requests_fault(
    talker: Server, options: dict[str, Any], param: str
) -> None:
    with ThreadPoolExecutor() as pool:
        other = pool.submit(ask, talker, max_tokens=60)
        refused = talker.post(PATH, {"model": "tiny", "prompt": " "} | options)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"].startswith(param)
        assert first(other.result())["text"] == first(ask(talker, max_tokens=60))["text"]


def test_26_penalties_harm_nobody_beside_them(talker: Server) -> None:
    odd = [name for name in FIELDS if name.startswith(("09", "10"))][::2]
    asked = [{"prompt": " ", "seed": 1} | FIELDS[name] for name in odd]
    alone = [first(ask(talker, **options))["text"] for options in asked]
    bare = first(ask(talker, max_tokens=60))["text"]
    with ThreadPoolExecutor(16) as pool:
        others = [pool.submit(ask, talker, max_tokens=60) for _ in asked]
        together = list(pool.map(lambda options: first(ask(talker, **options))["text"], asked))
    assert together == alone
    assert {first(other.result())["text"] for other in others} == {bare}
    assert talker.state()["engine_deaths"] == 0
