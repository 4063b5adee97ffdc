"""Ranks that the real `torchrun` starts: what they write, serve, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from distributed.test_ranks import checkpoints
from outpace import LLM, ConfigError, SamplingParams
from outpace.cli.main import main
from outpace.distributed.handshake import KEY
from server.models import make_model
from server.running import certificates, reserved_port, until

TORCHRUN = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]
OUTPACE = ["-m", "outpace.cli.main"]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "a secret of both ranks")


@pytest.fixture
def rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is what torchrun's first rank of two would be."""
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "localhost")


def test_ranks_of_two_launchers_write_what_one_writes(tmp_path: Path) -> None:
    """As on two machines: each has a torchrun of its own, and a rank of them."""
    target, drafter = checkpoints(tmp_path, "llama")
    llm = LLM(target, drafter=None, dtype="float32", device="cpu", num_pages=100)
    alone = llm.generate([5, 6, 7, 8], SamplingParams(max_tokens=12, ignore_eos=True))[0].token_ids
    launcher = [TORCHRUN[0], "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    command = ["generate", target, "5 6 7 8", "--ids", "--json", "--max-tokens", "12", "--ignore-eos", "--tp", "2"]
    command += ["--drafter", drafter, "--dtype", "float32", "--device", "cpu", "--num-pages", "100"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with reserved_port() as port:
        launcher += ["--rdzv-endpoint", f"localhost:{port}", "--local-addr", "localhost"]
        started = [subprocess.Popen([*launcher, *OUTPACE, *command], **pipes) for _ in range(2)]
        said = [process.communicate(timeout=240) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    (shared,) = (json.loads(out.splitlines()[-1]) for out, _ in said if out)
    assert tuple(shared["token_ids"]) == alone
    assert shared["settings"]["parallel"]["size"] == 2


@pytest.mark.usefixtures("rank_0")
def test_without_a_key_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY)
    target, _ = checkpoints(tmp_path, "llama")
    with pytest.raises(ConfigError, match="OUTPACE_RANKS_KEY is not set"):
        LLM(target, drafter=None, device="cpu", tensor_parallel=2)


@pytest.mark.usefixtures("rank_0")
def test_ranks_that_would_each_answer_alone_are_refused(tmp_path: Path) -> None:
    target, _ = checkpoints(tmp_path, "llama")
    with pytest.raises(
        ConfigError, match="tensor_parallel is 1, but torchrun started 2 ranks: make them equal, or unset"
    ):
        LLM(target, drafter=None, device="cpu", num_pages=100)


@pytest.mark.usefixtures("rank_0")
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "tensor_parallel is 1, but torchrun started 2 ranks: make them equal"),
        (("--tp", "2", "--max-restarts", "3"), "max_restarts is 3; torchrun starts ranks again, all together"),
    ],
)
def test_a_server_that_torchrun_cannot_run_is_refused(
    flags: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path), *flags]) == 2
    assert says in capsys.readouterr().err


@contextmanager
def served(target: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """torchrun and the URL of the server that its first rank is, once it is ready."""
    command = [*TORCHRUN, *OUTPACE, "serve", str(target), "--served-name", "tiny", "--port", "0", "--tp", "2"]
    command += ["--drafter", "none", "--device", "cpu", "--num-pages", "300", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said, port = "", 0
    try:
        for line in process.stderr:
            said += line
            port = int(found[1]) if (found := re.search(r'"port": ?(\d+)', line)) else port
            if "engine ready" in line:
                break
        assert port, said
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=60)


def ask(url: str, **body: Any) -> httpx.Response:
    given = {"model": "tiny", "prompt": "a", "max_tokens": 5, "temperature": 0} | body
    return httpx.post(f"{url}/v1/completions", json=given, timeout=60, verify=certificates())


def test_a_server_of_torchruns_drains_and_ends_with_all_its_ranks(tmp_path: Path) -> None:
    with served(make_model(tmp_path / "target")) as (process, url):
        assert ask(url).json()["usage"]["completion_tokens"] == 5
        state = httpx.get(f"{url}/v1/outpace/state", timeout=60, verify=certificates()).json()
        assert state["settings"]["parallel"]["size"] == 2
        with httpx.stream(
            "POST",
            f"{url}/v1/completions",
            json={"model": "tiny", "prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True},
            timeout=60,
            verify=certificates(),
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert "data: [DONE]" in list(lines), "what ran was not finished"
        process.wait(60)
    until(lambda: not [path for path in Path("/proc").glob("[0-9]*/cmdline") if _names(path, tmp_path)])


def _names(cmdline: Path, path: Path) -> bool:
    try:
        return os.fsencode(path) in cmdline.read_bytes()
    except OSError:
        return False  # it ended meanwhile
