"""A server whose model two ranks share: answers, figures, a rank that dies, and the way out."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from distributed.test_ranks import children
from outpace import LLM, SamplingParams
from server.running import Server, is_alive, serving, until

ENGINE = {"num_pages": 400, "max_rows": 4, "control": "fixed", "k": 3, "max_context": 160}
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]


def chat(server: Server, **changes: Any) -> str:
    asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0} | changes
    text = server.client().chat.completions.create(**asked).choices[0].message.content
    assert text is not None
    return str(text)


def test_two_ranks_serve_from_start_to_end(model: Path, drafter: Path) -> None:
    llm = LLM(str(model), drafter=None, dtype="float32", device="cpu", **ENGINE)
    alone = llm.chat(HELLO, SamplingParams(max_tokens=12)).text
    words = [word for name, value in ENGINE.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    flags = ("--tensor-parallel", "2", "--dtype", "float32", "--device", "cpu", "--nccl", "NCCL_PROTO=LL")
    with serving(model, "--drafter", str(drafter), *words, *flags) as server:
        assert chat(server) == alone
        digits = {"extra_body": {"structured_outputs": {"regex": "[0-9]{4}"}}}
        assert re.fullmatch("[0-9]{4}", chat(server, temperature=0.9, presence_penalty=0.5, **digits))
        assert "outpace_tokens_total 1" in server.get("/metrics").text
        ranks = server.state()["settings"]["parallel"]
        assert (ranks["size"], ranks["backend"]) == (2, "gloo")
        assert [rank["nccl_observed"]["NCCL_PROTO"] for rank in ranks["ranks"]] == ["LL", "LL"]

        first = server.state()["engine_pid"]
        (victim,) = children(first)
        stream = server.client().completions.create(
            model="tiny", prompt="a", max_tokens=100, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(openai.APIError, match=rf"rank 1 \(process {victim}\) failed: .* killed by SIGKILL"):
            list(stream)
        server.event("engine ready", 2)
        assert chat(server) == alone
        second = server.state()["engine_pid"]
        (other,) = children(second)
        assert second != first and other != victim and server.state()["engine_deaths"] == 1
        assert not is_alive(first)

        assert server.end() == 0
        until(lambda: not is_alive(second) and not is_alive(other))
