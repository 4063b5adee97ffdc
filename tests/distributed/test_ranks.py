"""Ranks in processes of their own: the same answers as alone, and a clear end when one of them dies."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.test_lossless import answers, prompts
from models.checkpoints import make_checkpoint, make_kimi
from outpace import LLM, ConfigError, EngineError, RequestError, SamplingParams
from outpace.distributed import rendezvous, workers
from outpace.engine.ranks import crew, failures
from outpace.engine.ranks.follower import SECONDS_A_BEAT
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import save_drafter
from outpace.models.registry import load_target
from outpace.models.source import locate
from outpace.models.target import Target
from outpace.server.engine_client.child import Child
from outpace.server.wire import FromEngine, Lost, Ready, Stalled, Start, Submit
from server.running import until

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "page_size": 4, "max_rows": 8, "num_pages": 400}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is noticed by a silence alone is noticed after the test's time."""
    monkeypatch.setattr(crew, "SECONDS_OF_SILENCE", 3600.0)


def checkpoints(directory: Path, architecture: str, **overrides: Any) -> tuple[str, str]:
    """A target and a drafter for it, of random weights."""
    target, drafter = directory / "target", directory / "drafter"
    if architecture == "kimi":
        make_kimi(target)
    else:
        make_checkpoint(target, architecture, **overrides)
    loaded = load_target(locate(str(target)), dtype=torch.float32, device="cpu")
    save_drafter(Drafter.create(loaded.model, draft_ids=None), drafter)
    return str(target), str(drafter)


def processes() -> set[int]:
    """Followers that are alive, whoever started them."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"outpace.engine.ranks.follower" in path.read_bytes():
                found.add(int(path.parent.name))
        except OSError:
            continue  # it ended meanwhile
    return found


def children(pid: int) -> set[int]:
    return {p for p in processes() if f"PPid:\t{pid}\n" in _status(p)}


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


PARAMS = [
    SamplingParams(max_tokens=20, ignore_eos=True),
    SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.9, seed=5),
    SamplingParams(max_tokens=20, ignore_eos=True, temperature=1.1, top_p=0.9, top_k=40, seed=6),
    SamplingParams(max_tokens=20, ignore_eos=True, repetition_penalty=1.3, logit_bias={7: 2.0}, logprobs=2),
]
PLAIN = [replace(params, max_k=0) for params in PARAMS]


@pytest.mark.parametrize(
    "architecture", ["llama", "qwen3", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "kimi"]
)
def test_ranks_write_what_one_writes(architecture: str, tmp_path: Path) -> None:
    target, drafter = checkpoints(tmp_path, architecture)
    batch = prompts(4, seed=2)
    alone = answers(LLM(target, drafter=None, **OPTIONS).generate(batch, PARAMS))
    size = 4 if architecture == "llama" else 2
    control = "auto" if architecture in ("qwen3", "deepseek_v3") else "fixed"
    with LLM(target, drafter=drafter, k=3, control=control, tensor_parallel=size, **OPTIONS) as llm:
        assert len(children(os.getpid())) == size - 1
        assert answers(llm.generate(batch, PARAMS)) == alone
        assert answers(llm.generate(batch, PLAIN)) == alone
        parallel = llm.describe()["parallel"]
        assert parallel["backend"] == "gloo"
        assert parallel["gathering"]["why_not_symmetric"] == "there is no symmetric memory without GPUs"
    assert not children(os.getpid())


def test_a_killed_rank_ends_the_group_with_a_clear_error(tmp_path: Path) -> None:
    target, _ = checkpoints(tmp_path, "llama")
    llm = LLM(target, drafter=None, tensor_parallel=4, **OPTIONS)
    victim = min(children(os.getpid()))
    stream = llm.stream([1, 2, 3], SamplingParams(max_tokens=100, ignore_eos=True))
    next(stream)
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(EngineError, match=rf"rank \d \(process {victim}\) failed: .*SIGKILL"):
        list(stream)
    with pytest.raises(EngineError, match="make a new LLM"):
        llm.generate([1, 2, 3])
    llm.close()
    assert not children(os.getpid())


def test_a_rank_that_hangs_is_killed_and_named(tmp_path: Path) -> None:
    """A stopped process is one that hangs, seen from outside; rank 0 waits for it in a collective."""
    target, _ = checkpoints(tmp_path, "llama")
    with LLM(target, drafter=None, tensor_parallel=2, **OPTIONS) as llm:
        (victim,) = children(os.getpid())
        assert llm.ranks is not None
        (pipe,) = llm.ranks._crew._pipes
        stream = llm.stream([1, 2, 3], SamplingParams(max_tokens=100, ignore_eos=True))
        next(stream)
        pipe._silence = 5.0  # to start, a rank may take longer
        pipe._connection.settimeout(5.0)
        time.sleep(1.5 * SECONDS_A_BEAT)  # it holds from the next beat on
        os.kill(victim, signal.SIGSTOP)
        with pytest.raises(EngineError, match=rf"rank 1 \(process {victim}\) failed: .* no sign of life for 5 s"):
            list(stream)
    assert not children(os.getpid())


OPENING = """
import time
from outpace.engine.ranks import follower


def hangs(device):
    while True:
        time.sleep(0.1)


follower.enter = hangs
"""
LOADING = """
import time
from outpace.models.target import Target

load = Target.load


def hanging(self, tensors, taken=None):
    def hangs():
        while self.group.rank == 1:
            taken()
            time.sleep(3600.0)

    load(self, tensors, hangs)


Target.load = hanging
"""


@pytest.mark.parametrize(("code", "at"), [(OPENING, "opening its device"), (LOADING, "loading")])
def test_a_rank_that_hangs_before_it_is_ready_is_named(
    code: str, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process lives, and goes on beating."""
    target, _ = checkpoints(tmp_path, "llama")
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(crew, "SECONDS_TO_GET_ON", 5.0)
    monkeypatch.setattr(workers, "SECONDS_TO_END", 0.5)
    where = rf"rank 1 has been {at} for \d+ s \(process \d+ on .*; [01] tensors? loaded, "
    says = rf"rank 1 \(process \d+\) failed: it was waited for and did not get on for \d+ s \(.*{where}.*disk .* device"
    with pytest.raises(EngineError, match=says):
        LLM(target, drafter=None, tensor_parallel=2, **OPTIONS)
    assert not children(os.getpid())


DIES_JOINING = """
import os
from outpace.engine.ranks import follower

join = follower.join


def dies_once(*given):
    try:
        os.close(os.open({mark!r}, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return join(*given)
    os._exit(1)


follower.join = dies_once
"""


def test_where_ranks_did_not_meet_a_new_llm_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch counts a process's groups, those that came to nothing too, and ranks look for each other by the count."""
    target, _ = checkpoints(tmp_path, "llama")
    (tmp_path / "sitecustomize.py").write_text(DIES_JOINING.format(mark=str(tmp_path / "died")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(rendezvous, "TIMEOUT", timedelta(seconds=60))
    with pytest.raises(EngineError, match=r"rank 1 \(process \d+\) failed: its process ended with exit code 1"):
        LLM(target, drafter=None, tensor_parallel=2, **OPTIONS)
    with LLM(target, drafter=None, tensor_parallel=2, **OPTIONS) as llm:
        assert llm.generate([[1, 2, 3]], SamplingParams(max_tokens=3, ignore_eos=True))


def test_a_stopped_rank_ends_with_the_engine_process_that_the_server_kills(tmp_path: Path) -> None:
    """It cannot notice that its connection ended, and would keep a GPU's memory from the engine that comes next."""
    target, _ = checkpoints(tmp_path, "llama")
    options = {"tensor_parallel": 2, "num_pages": 100}
    start = Start(model=target, drafter=None, dtype="float32", device="cpu", aux_boundaries=None, options=options)

    async def hangs() -> set[int]:
        child = await Child.start(start)
        while not (found := children(child.pid)):
            await asyncio.sleep(0.05)
        for rank in found:
            os.kill(rank, signal.SIGSTOP)
        child.kill()
        assert "SIGKILL" in await child.end()
        return found

    stopped = asyncio.run(hangs())
    until(lambda: not stopped & processes())


def test_a_rank_that_dies_while_nobody_asks_is_said_at_once(tmp_path: Path) -> None:
    """Else the server would call itself ready, and the next request would pay."""
    target, _ = checkpoints(tmp_path, "llama")
    options = {"tensor_parallel": 2, "num_pages": 100}
    start = Start(model=target, drafter=None, dtype="float32", device="cpu", aux_boundaries=None, options=options)

    async def last_words() -> str:
        child = await Child.start(start)
        said = ""

        def hear(message: FromEngine) -> None:
            nonlocal said
            if isinstance(message, Ready):
                os.kill(min(children(child.pid)), signal.SIGKILL)
            said = message.message if isinstance(message, Lost) else said

        async with asyncio.timeout(200):
            await child.listen(hear)
        await child.end()
        return said

    assert re.search(r"rank 1 \(process \d+\) failed: its process was killed by SIGKILL", asyncio.run(last_words()))


def test_ranks_end_with_the_first(tmp_path: Path) -> None:
    target, _ = checkpoints(tmp_path, "llama")
    script = (
        "import os, signal, sys\n"
        "from outpace import LLM\n"
        f"llm = LLM({target!r}, drafter=None, tensor_parallel=2, dtype='float32', num_pages=100)\n"
        "print('up', flush=True)\n"
        "signal.pause()\n"
    )
    for hangs in (False, True):
        first = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert first.stdout is not None
        assert first.stdout.readline() == "up\n"
        followers = children(first.pid)
        assert len(followers) == 1
        for follower in followers if hangs else ():
            os.kill(follower, signal.SIGSTOP)
        first.kill()
        first.wait()
        first.stdout.close()
        until(lambda gone=followers: not gone & processes())


def test_ranks_that_choose_different_tokens_are_found_out(tmp_path: Path) -> None:
    """The first rank's noise is another from the second token on."""
    target, _ = checkpoints(tmp_path, "llama")
    with LLM(target, drafter=None, tensor_parallel=2, **OPTIONS) as llm:
        stream = llm.stream([1, 2, 3], SamplingParams(max_tokens=200, ignore_eos=True, temperature=1.0, seed=1))
        next(stream)
        llm.engine.runner.state.seed_R.fill_(2)
        with pytest.raises(EngineError, match="it chose other tokens than rank 0 within its first 64 forwards"):
            list(stream)


NO_MEMORY = """
import torch
from outpace.speculation.state import State

provide, calls = State.provide, []


def full_at_first(self, vocab_size):
    calls.append(vocab_size)
    if len(calls) == 1:
        raise torch.OutOfMemoryError
    provide(self, vocab_size)


State.provide = full_at_first
"""


def test_a_rank_without_memory_refuses_one_request_and_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that are started run the file that Python looks for at its start; this process does not."""
    target, _ = checkpoints(tmp_path, "llama")
    (tmp_path / "sitecustomize.py").write_text(NO_MEMORY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    batch, penalised = prompts(2, seed=4), replace(PARAMS[3], logprobs=None)
    alone = LLM(target, drafter=None, **OPTIONS)
    with LLM(target, drafter=None, tensor_parallel=2, **OPTIONS) as llm:
        with pytest.raises(RequestError, match="more memory than is left for all 8 rows"):
            llm.generate(batch, penalised)
        assert llm.engine.runner.state.extras is None
        assert answers(llm.generate(batch, PARAMS[1])) == answers(alone.generate(batch, PARAMS[1]))
        assert answers(llm.generate(batch, penalised)) == answers(alone.generate(batch, penalised))


POISON = 77
POISONED = """
import torch
from outpace.models.target import Target

forward = Target.forward


def poisoned(self, tokens, positions, attend, *rest, **more):
    if not (tokens == {poison}).any():
        return forward(self, tokens, positions, attend, *rest, **more)
    if {late}:
        self.group.gather(torch.zeros(1))
    raise torch.OutOfMemoryError("no memory for this prompt")


Target.forward = poisoned
"""


def poison(directory: Path, monkeypatch: pytest.MonkeyPatch, *, here: bool, others: bool, late: bool = False) -> None:
    """One token makes the forwards of some ranks raise, before any collective or after one that no rank else is in."""
    if others:
        (directory / "sitecustomize.py").write_text(POISONED.format(poison=POISON, late=late))
        monkeypatch.setenv("PYTHONPATH", str(directory), prepend=os.pathsep)
    if here:
        monkeypatch.setattr(Target, "forward", Target.forward)  # put back at the end
        exec(POISONED.format(poison=POISON, late=False), {})


HANGS = """
import time
from outpace.models.target import Target

forward = Target.forward


def hanging(self, tokens, *rest, **more):
    while self.group.rank == 1 and (tokens == {poison}).any():
        time.sleep(0.1)
    return forward(self, tokens, *rest, **more)


Target.forward = hanging
"""


def hang(directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One token makes the forwards of rank 1 hang; how that is told, rank 1 first."""
    (directory / "sitecustomize.py").write_text(HANGS.format(poison=POISON))
    monkeypatch.setenv("PYTHONPATH", str(directory), prepend=os.pathsep)
    rank = r"has been at Prefill for \d+ s \(process {pid} on " + socket.gethostname() + r", cpu; forward \d+, "
    first, behind = rank.format(pid=r"\d+"), rank.format(pid=r"(\d+)")
    heard = r"(?:, heard \d+ s ago)?"
    return rf"^rank 1 {behind}after its collective (\d+)\){heard}; rank 0 {first}within its collective (\d+)\)$"


def test_where_a_rank_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process lives, and rank 0 waits for it in a collective."""
    target, _ = checkpoints(tmp_path, "llama")
    told = hang(tmp_path, monkeypatch)
    with LLM(target, drafter=None, tensor_parallel=2, **OPTIONS) as llm, ThreadPoolExecutor(1) as thread:
        ranks = llm.ranks
        assert ranks is not None
        waits = thread.submit(llm.generate, [[1, POISON, 2]], UNPOISONED)
        until(lambda: re.match(told, ranks.whereabouts()) is not None)
        found = re.match(told, ranks.whereabouts())
        assert found is not None
        pid, before, within = map(int, found.groups())
        (victim,) = children(os.getpid())
        assert (pid, within) == (victim, before + 1)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(EngineError, match=rf"rank 1 \(process {victim}\) failed: .*SIGKILL"):
            waits.result()


def test_an_engine_that_hangs_says_which_rank_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the server kills it, which would be the end of all that is known."""
    target, _ = checkpoints(tmp_path, "llama")
    options = {"tensor_parallel": 2, "num_pages": 100}
    start = Start(model=target, drafter=None, dtype="float32", device="cpu", aux_boundaries=None, options=options)
    told = hang(tmp_path, monkeypatch)

    async def hangs() -> str:
        child, said = await Child.start(start), ""

        def hear(message: FromEngine) -> None:
            nonlocal said
            if isinstance(message, Ready):
                child.send(Submit(id=0, prompt_ids=[1, POISON, 2], params=SamplingParams(seed=1)))
            if isinstance(message, Stalled) and re.match(told, said := message.message):
                child.kill()

        async with asyncio.timeout(120):
            await child.listen(hear)
        await child.end()
        return said

    assert re.match(told, asyncio.run(hangs()))


CLEAN = [[token for token in prompt if token != POISON] for prompt in prompts(3, seed=4)]
UNPOISONED = SamplingParams(max_tokens=20, ignore_eos=True, logit_bias={POISON: -100.0})


def test_what_all_ranks_raise_alike_fails_the_step_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, drafter = checkpoints(tmp_path, "llama")
    alone = answers(LLM(target, drafter=None, **OPTIONS).generate(CLEAN, UNPOISONED))
    poison(tmp_path, monkeypatch, here=True, others=True)
    with LLM(target, drafter=drafter, k=3, control="fixed", tensor_parallel=4, **OPTIONS) as llm:
        stream = llm.stream(CLEAN[0], UNPOISONED)
        written = list(next(stream).token_ids)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError, match="no memory for this prompt"):
                llm.generate([[1, POISON, 2]], UNPOISONED)
        for chunk in stream:
            written += chunk.token_ids
        assert tuple(written) == alone[0]
        assert answers(llm.generate(CLEAN, UNPOISONED)) == alone
        assert len(children(os.getpid())) == 3, "the processes that were started"


@pytest.mark.parametrize(
    ("here", "others", "late", "says"),
    [
        (False, True, False, r"rank [123] \(process \d+\) failed: it raised .*no memory for this .*rank 0 had no such"),
        (True, False, False, r"rank 0 failed: it raised OutOfMemoryError: no memory .*; rank \d had no error there"),
        (True, True, True, r"rank 0 failed: it raised OutOfMemoryError: no memory .*; rank \d had no error there"),
    ],
)
def test_what_some_ranks_raise_ends_the_group_and_says_whose(
    here: bool, others: bool, late: bool, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = checkpoints(tmp_path, "llama")
    monkeypatch.setattr(failures, "SECONDS_TO_AGREE", 2.0)
    poison(tmp_path, monkeypatch, here=here, others=others, late=late)
    with LLM(target, drafter=None, tensor_parallel=4, **OPTIONS) as llm:
        llm.generate(CLEAN, UNPOISONED)
        with pytest.raises(EngineError, match=says):
            llm.generate([[1, POISON, 2]], UNPOISONED)
        with pytest.raises(EngineError, match="make a new LLM"):
            llm.generate(CLEAN, UNPOISONED)
    assert not children(os.getpid())


def test_what_cannot_be_shared_is_refused_before_any_process_starts(tmp_path: Path) -> None:
    target, _ = checkpoints(tmp_path, "llama")
    with pytest.raises(ConfigError, match="num_attention_heads is 4, which 3 ranks cannot share evenly"):
        LLM(target, drafter=None, tensor_parallel=3, **OPTIONS)
    with pytest.raises(ConfigError, match=r"nccl holds 'PROTO=LL'; each setting must be NAME=VALUE"):
        LLM(target, drafter=None, tensor_parallel=2, nccl=("PROTO=LL",), **OPTIONS)
    with pytest.raises(ConfigError, match="one rank alone has no use for it"):
        LLM(target, drafter=None, nccl=("NCCL_PROTO=LL",), **OPTIONS)
    with pytest.raises(ConfigError, match="sums is 'library', but one rank alone has nothing to add up"):
        LLM(target, drafter=None, sums="library", **OPTIONS)
    assert not children(os.getpid())


def test_settings_of_nccl_are_shown_as_asked_for_and_as_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_PROTO", "Simple")  # put back at the end, which the engine's own setting is not
    target, _ = checkpoints(tmp_path, "llama")
    with LLM(target, drafter=None, tensor_parallel=2, nccl=("NCCL_PROTO=LL",), **OPTIONS) as llm:
        ranks = llm.describe()["parallel"]
        assert ranks["nccl_asked"] == {"NCCL_PROTO": "LL"}
        for rank in ranks["ranks"]:
            assert rank["nccl_observed"]["NCCL_PROTO"] == "LL"
            assert rank["nccl_observed"]["NCCL_ALGO"] == "Ring"
