"""Two GPUs that share a model write what one writes alone, drafted or not, from graphs on both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from distributed.test_ranks import children
from engine.test_lossless import answers, prompts
from models.checkpoints import make_checkpoint
from outpace import LLM, Grammar, SamplingParams
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import save_drafter
from outpace.models.registry import load_target
from outpace.models.source import locate
from server.models import make_drafter, make_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 1001,
    "max_position_embeddings": 512,
}
GREEDY = SamplingParams(max_tokens=32, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=32, ignore_eos=True, temperature=0.9, top_p=0.95, seed=3)
OPTIONS: dict[str, Any] = {"device": "cuda", "max_context": 256, "max_rows": 4, "capture_s": 0.0}
"""Graphs are captured as they are needed: what a start captures ahead takes longer than the answers."""
SECONDS_UNTIL_SHOWN = 100.0

Say = Callable[[str], None]


@pytest.fixture(autouse=True)
def shown_when_stuck() -> Iterator[None]:
    """The other ranks' stacks go to stderr if a test takes long; pytest shows this process's (faulthandler_timeout)."""

    def show() -> None:
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGUSR1)

    timer = threading.Timer(SECONDS_UNTIL_SHOWN, show)
    timer.start()
    yield
    timer.cancel()


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Progress that is seen at once, whatever is captured."""
    began = time.monotonic()

    def told(text: str) -> None:
        with capfd.disabled():
            print(f"  {time.monotonic() - began:6.1f} s  {text}", flush=True)

    return told


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    target, drafter = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("drafter")
    make_checkpoint(target, "llama", **SIZES)
    _save_random_drafter(target, drafter)
    return str(target), str(drafter)


def _save_random_drafter(target: Path, directory: Path) -> None:
    loaded = load_target(locate(str(target)), dtype=torch.float32, device="cpu")
    save_drafter(Drafter.create(loaded.model, draft_ids=torch.arange(0, 1001, 2)), directory)


@pytest.mark.timeout(280)
def test_two_ranks_write_what_one_writes(models: tuple[str, str], dtype: str, say: Say) -> None:
    target, drafter = models
    batch = [[token % 1001 for token in prompt] for prompt in prompts(4, seed=1)]
    alone = LLM(target, drafter=None, dtype=dtype, **OPTIONS)
    say(f"{dtype}: one GPU is up")
    expected = [answers(alone.generate(batch, params)) for params in (GREEDY, SAMPLED)]
    say("one GPU has answered")
    written = {}
    for sums in ("auto", "library"):
        with LLM(
            target, drafter=drafter, dtype=dtype, k=3, control="fixed", tensor_parallel=2, sums=sums, **OPTIONS
        ) as llm:
            described = llm.describe()
            say(f"two GPUs are up: {described['parallel']['gathering']}")
            written[sums] = [answers(llm.generate(batch, replace(params, max_k=0))) for params in (GREEDY, SAMPLED)]
            say("two GPUs have answered plainly")
            drafted = [answers(llm.generate(batch, params)) for params in (GREEDY, SAMPLED)]
            say("and with drafts")
            assert drafted == written[sums], "drafts changed an answer"
            described = llm.describe()
        for graphs in (described["graphs"], described["graphs"]["prefill"]):
            assert graphs["captured"] > 0 and not graphs["eager"]
        assert [rank["device"] for rank in described["parallel"]["ranks"]] == ["cuda:0", "cuda:1"]
    assert written["auto"] == written["library"], "who gathers changed an answer"
    if dtype == "float32":
        assert written["auto"] == expected


@pytest.mark.timeout(280)
def test_calibrated_control_runs_on_all_ranks(models: tuple[str, str], say: Say) -> None:
    target, drafter = models
    with LLM(target, drafter=drafter, k=3, tensor_parallel=2, **OPTIONS | {"capture_s": 10.0}) as llm:
        described = llm.describe()
        assert described["control"] and described["graphs"]["at_start"]["compiled"] > 0
        say(f"calibrated; graphs {described['graphs']['at_start']}")
        batch = [[token % 1001 for token in prompt] for prompt in prompts(4, seed=2)]
        plain = replace(GREEDY, max_k=0)
        assert answers(llm.generate(batch, GREEDY)) == answers(llm.generate(batch, plain))


KILLED = """
import os, signal, sys, time
import torch
from outpace import LLM, EngineError, SamplingParams

if __name__ == "__main__":
    llm = LLM(sys.argv[1], drafter=None, tensor_parallel=2, max_context=256, max_rows=4, capture_s=0.0, device="cuda")
    print(llm.describe()["parallel"]["gathering"], flush=True)
    victim = llm.ranks._crew._workers[0].pid
    stream = llm.stream([1, 2, 3], SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    try:
        list(stream)
    except EngineError as error:
        print(error, flush=True)
    torch.cuda.synchronize()
    print("free after", round(time.monotonic() - began, 1), flush=True)
    llm.close()
"""


@pytest.mark.timeout(150)
def test_a_killed_rank_sets_free_what_waits_for_it(models: tuple[str, str], say: Say, tmp_path: Path) -> None:
    """A sum over symmetric memory waits on the GPU, where NCCL's abort does not reach. In a process of its own, which
    has not been in another group."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    done = subprocess.run([sys.executable, script, models[0]], capture_output=True, text=True, timeout=120)
    say(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "rank 1" in done.stdout and "SIGKILL" in done.stdout and "free after" in done.stdout


@pytest.mark.timeout(280)
def test_two_ranks_follow_grammars_as_one_does(tmp_path: Path) -> None:
    target = make_model(tmp_path / "target")
    drafter = str(make_drafter(target, tmp_path / "drafter"))
    grammar = Grammar.regex("(ab|cd)+[0-9]{2,12}x")
    params = [SamplingParams(max_tokens=40, grammar=grammar), replace(SAMPLED, grammar=grammar), SAMPLED]
    batch = [[1, 2, 3], [9] * 20, [5, 6]]
    alone = LLM(str(target), drafter=None, dtype="float32", device="cuda", max_context=256)
    expected = answers(alone.generate(batch, params))
    with LLM(
        str(target), drafter=drafter, dtype="float32", device="cuda", k=3, tensor_parallel=2, max_context=256
    ) as llm:
        assert answers(llm.generate(batch, params)) == expected
        assert not llm.describe()["graphs"]["eager"]
