"""What an answer is told with: many log-probabilities, spelled without keeping anybody waiting."""

from __future__ import annotations

import asyncio
from functools import partial
from threading import Semaphore
from typing import ClassVar

import msgspec
import pytest
from starlette.requests import Request

from outpace import RequestError, SamplingParams
from outpace.server.answering import response
from outpace.server.answering.formats import ChatFormat, CompletionFormat, Envelope, Format
from outpace.server.answering.reading import Reader
from outpace.server.answering.response import Answering
from outpace.server.api.answer import answer
from outpace.server.api.backend import Backend
from outpace.server.asking.protocol import CompletionRequest
from outpace.server.engine_client import jobs
from outpace.server.engine_client.jobs import Job, Submission, TooSlow
from outpace.server.http.observing import KEY, Facts
from outpace.server.text.spelling import Spelling, columns, entries
from outpace.server.wire import Piece, Tally
from outpace.types import TokenLogprobs
from server.backends import bare_backend

IDS = (7, 8)
LOGPROBS = (TokenLogprobs(-0.5, ((7, -0.5), (9, -2.0))), TokenLogprobs(float("-inf"), ((8, -1.0),)))


def spell(token: int) -> Spelling:
    return Spelling(f"<{token}>", b"<%d>" % token)


def piece(**changes: object) -> Piece:
    common = {"id": 1, "text": "", "token_ids": (), "finish_reason": None, "tally": Tally()}
    return Piece(**common | changes)  # type: ignore[arg-type]


def submission(num_answers: int = 1, **params: int) -> Submission:
    wanted = [([1] * 600, SamplingParams(seed=1, **params)) for _ in range(num_answers)]  # type: ignore[arg-type]
    return Submission(wanted, range(num_answers), 1e9, _end)


def _end(job: Job) -> None:
    job.state = "done"


def reader(form: Format, **changes: object) -> Reader:
    settings = {"spell": spell, "columnar": form.columnar, "echoed": None, "tells_prompt": True}
    return Reader(**settings | changes)  # type: ignore[arg-type]


def test_entries_are_written_as_chats_and_completions_have_them() -> None:
    told = msgspec.json.decode(msgspec.json.encode([entry.told for entry in entries(spell, IDS, LOGPROBS)]))
    assert told[0] == {
        "token": "<7>",
        "logprob": -0.5,
        "bytes": list(b"<7>"),
        "top_logprobs": [
            {"token": "<7>", "logprob": -0.5, "bytes": list(b"<7>")},
            {"token": "<9>", "logprob": -2.0, "bytes": list(b"<9>")},
        ],
    }
    assert told[1]["logprob"] == -9999.0
    listed = entries(spell, (5, *IDS), (None, *LOGPROBS), columnar=True)
    assert msgspec.json.decode(msgspec.json.encode(columns(listed, 4))) == {
        "tokens": ["<5>", "<7>", "<8>"],
        "token_logprobs": [None, -0.5, -9999.0],
        "top_logprobs": [None, {"<7>": -0.5, "<9>": -2.0}, {"<8>": -9999.0}],
        "text_offset": [4, 7, 10],
    }


def test_many_log_probabilities_keep_nobody_waiting() -> None:
    """A spelling that waits for others to have had as many turns of the loop as it has spelled tokens."""
    turns = Semaphore(0)

    def slowly(token: int) -> Spelling:
        assert turns.acquire(timeout=60), "nobody else had a turn"
        return spell(token)

    async def others() -> None:
        while True:
            await asyncio.sleep(0)
            turns.release()

    async def work() -> None:
        served = asyncio.create_task(others())
        read = reader(ChatFormat(), spell=slowly).read
        part = await read(submission().jobs[0], piece(prompt_logprobs=(None, *LOGPROBS[:1] * 99)))
        assert part.prompt_logprobs is not None and len(part.prompt_logprobs) == 100
        served.cancel()

    asyncio.run(work())


@pytest.mark.parametrize("form", [ChatFormat(), CompletionFormat()])
def test_a_prompt_that_comes_in_parts_is_told_as_one(form: Format) -> None:
    parts = [piece(prompt_logprobs=(None, *LOGPROBS)), piece(prompt_logprobs=LOGPROBS[:1])]
    parts.append(piece(prompt_logprobs=LOGPROBS[1:], text="ab", token_ids=(3,), logprobs=LOGPROBS[:1]))
    parts.append(piece(text="c", token_ids=(4,), logprobs=LOGPROBS[:1], finish_reason="stop"))

    async def work() -> dict[str, object]:
        asked = submission(logprobs=2, prompt_logprobs=2)
        asked.jobs[0].prompt_ids[:] = [11, 12, 13, 14, 15]
        for part in parts:
            asked.jobs[0].put(asked.jobs[0], part)
        asked.jobs[0].state = "done"
        echoed = ("echo ",) if form.columnar else None
        whole = await made(asked, form, echoed=echoed)._whole()
        return msgspec.json.decode(msgspec.json.encode(whole))["choices"][0]  # type: ignore[no-any-return]

    choice = asyncio.run(work())
    prompt = choice["prompt_logprobs"]
    assert [entry["token"] for entry in prompt] == ["<11>", "<12>", "<13>", "<14>", "<15>"]  # type: ignore[attr-defined]
    if form.columnar:
        assert choice["text"] == "echo abc"
        logprobs = choice["logprobs"]
        assert logprobs["tokens"] == ["<11>", "<12>", "<13>", "<14>", "<15>", "<3>", "<4>"]  # type: ignore[index]
        assert logprobs["text_offset"] == [0, 4, 8, 12, 16, 20, 23]  # type: ignore[index]


def made(asked: Submission, form: Format, **changes: object) -> Answering:
    """An answer on its way, whose request is not looked at."""

    return Answering(
        request=Request({"type": "http", KEY: Facts("r")}),
        envelope=Envelope(form, "tiny"),
        submission=asked,
        num_prompts=(5,),
        include_usage=False,
        continuous_usage=False,
        reader=reader(form, **changes),
    )


def test_a_whole_answer_with_too_many_log_probabilities_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "MAX_LOGPROBS", 8)

    async def work() -> None:
        asked = submission(logprobs=2)
        for _ in range(3):
            asked.jobs[0].put(asked.jobs[0], piece(token_ids=(3,), logprobs=LOGPROBS[:1]))
        with pytest.raises(RequestError, match=r"^logprobs: .* may have 8 .*: stream it, or lower"):
            await made(asked, ChatFormat())._whole()

    asyncio.run(work())


def test_a_client_that_does_not_read_ends_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_UNREAD", 3)

    async def work() -> None:
        asked = submission(2)
        for _ in range(4):
            asked.jobs[0].put(asked.jobs[0], piece(text="a"))
        assert [job.state for job in asked.jobs] == ["done", "done"]
        assert len(await anext(asked)) == 3
        with pytest.raises(TooSlow, match="3 pieces"):
            await anext(asked)

    asyncio.run(work())


def backend_of(order: list[str]) -> Backend:
    """One that notes when a text is spelled, after which its client is gone, and when the engine is asked."""

    class Texts:
        special_id = spell = None

        async def text(self, token_ids: list[int], *, skip_special: bool) -> str:
            await asyncio.sleep(0)
            order.append("text")
            raise asyncio.CancelledError

    class Client:
        described: ClassVar[dict[str, object]] = {
            "engine": {"max_context": 99, "num_pages": 9, "page_size": 16},
            "target": {"vocab_size": 9, "eos_token_ids": [8]},
        }

        def check_open(self) -> None: ...

        def submit(self, *args: object) -> None:
            order.append("submit")

    return bare_backend(client=Client(), texts=Texts())


def test_an_echo_is_spelled_before_anything_runs() -> None:
    """A client that leaves while it is spelled would leave behind what nobody ends."""
    order: list[str] = []
    asked = CompletionRequest(model="tiny", prompt=[1, 2], echo=True)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(answer(backend_of(order), Request({"type": "http"}), asked, [[1, 2]], CompletionFormat()))
    assert order == ["text"]


def test_what_the_answer_needs_is_made_while_the_engine_is_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    for name in ("Envelope", "refusing", "Reader", "Answering"):
        note = partial(lambda name, *_, **__: order.append(name), name)
        monkeypatch.setattr(f"outpace.server.api.answer.{name}", note)
    asked = CompletionRequest(model="tiny", prompt=[1, 2])
    asyncio.run(answer(backend_of(order), Request({"type": "http"}), asked, [[1, 2]], CompletionFormat()))
    assert order[0] == "submit" and len(order) == 5
