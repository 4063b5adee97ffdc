"""Large bodies: what they may hold is counted right, and before any of it is made; what may be made is made quickly."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Lock, get_ident
from time import clock_gettime, pthread_getcpuclockid, thread_time
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx2 as httpx
import msgspec
import pytest
from fastapi import APIRouter, FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from starlette.responses import JSONResponse

from outpace.models.text.tokenizer import Tokenizer
from outpace.server.asking.protocol import ChatRequest, CompletionRequest, DetokenizeRequest
from outpace.server.asking.strict import PART as CHECKED
from outpace.server.http import api_errors, bodies, pieces
from outpace.server.http.api_errors import ApiError
from outpace.server.http.bodies import LARGE, MAX_NESTED, MAX_TEXTS, MAX_VALUES, BoundedRoute, check_shape
from outpace.server.http.observing import KEY, Facts
from server.running import Server

MIB = 1 << 20
HEAD = '{"model":"tiny","prompt":"a","x":['


def filled(head: str, unit: str, tail: str, size: int = 8 * MIB) -> bytes:
    """A body of so many bytes, most of it one thing over and over."""
    count = (size - len(head) - len(tail)) // (len(unit) + 1)
    return f"{head}{','.join([unit] * count)}{tail}".encode()


TOO_MUCH: dict[str, bytes] = {
    "objects": filled(HEAD, "{}", "]}"),
    "lists": filled(HEAD, "[]", "]}"),
    "texts": filled(HEAD, '""', "]}"),
    "texts of backslashes": filled(HEAD, r'"\\"', "]}"),
    "numbers": filled(HEAD, "1", "]}"),
    "prompts": filled('{"model":"tiny","prompt":[', "[1,1]", "]}"),
    "parts": filled('{"messages":[{"role":"user","content":[', '{"type":"text","text":""}', "]}]}"),
    "fields": b"{" + b",".join(b'"%d":1' % i for i in range(700_000)) + b"}",
    "no end": b"[" * (8 * MIB),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_much_is_refused_before_any_of_it_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of JSON holds everybody up: it is never called."""

    def reading(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("the body was read")

    monkeypatch.setattr(bodies, "read", reading)
    # Not of the module itself: a thread that reads another test's server log has it too.
    monkeypatch.setattr(bodies, "json", SimpleNamespace(loads=reading, JSONDecodeError=json.JSONDecodeError))
    response = asyncio.run(post(TOO_MUCH[name]))
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "too_many_values"


async def post(body: bytes) -> httpx.Response:
    """To an application of one route, in this loop."""
    (response,) = await post_all(body)
    return response


async def post_all(*contents: bytes) -> list[httpx.Response]:
    """All at once."""
    routes = APIRouter(route_class=BoundedRoute)

    @routes.post("/", response_model=None)
    async def echo(body: dict[str, Any]) -> JSONResponse:
        return JSONResponse(len(body))

    app = FastAPI()
    app.include_router(routes)
    api_errors.install(app, ())

    async def observed(scope: Any, receive: Any, send: Any) -> None:
        await app(scope | {KEY: Facts("r")}, receive, send)

    headers = {"Content-Type": "application/json"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(observed), base_url="http://here") as client:
        return await asyncio.gather(*(client.post("/", content=body, headers=headers) for body in contents))


LONG_TEXTS = {
    "prose": "Well, that is so, " * (8 * MIB // 18 - 10),
    "code": 'if a[0] == "b": { c([1, 2]) }\n' * (4 * MIB // 32),
    "a table": "1,2,3,4\n" * (5 * MIB // 10),
    "other alphabets": "Привет, мир! " * (8 * MIB // 24),
}


@pytest.mark.parametrize("name", LONG_TEXTS)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_what_stands_in_a_text_is_not_counted(name: str, ascii_only: bool) -> None:
    body = json.dumps({"prompt": LONG_TEXTS[name]}, ensure_ascii=ascii_only).encode()
    assert len(body) > 3 * MIB
    check_shape(body)
    assert asyncio.run(post(body[:-1] + b',"more":1}')).text == "2"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab,[{\\"', max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a,[{\\"', max_size=4), inner, max_size=3),
    max_leaves=30,
)


def counts(value: Any) -> tuple[int, int, int]:
    """Texts and names, objects and lists, and commas between values."""
    if isinstance(value, str):
        return 1, 0, 0
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    texts, nested, commas = (sum(column) for column in zip((0, 0, 0), *map(counts, inner), strict=True))
    is_nested = isinstance(value, dict | list)
    return texts, nested + is_nested, commas + (max(0, len(value) - 1) if is_nested else 0)


@settings(max_examples=300)
@given(value=VALUES)
def test_counts_are_exact(value: Any) -> None:
    """But for texts that hold backslashes: of these one in two may be missed."""
    texts, nested, commas = counts(value)
    body = json.dumps(value).encode()
    assert passes(body, texts, nested, commas)
    assert not passes(body, texts // 2 - 1, nested, commas)
    assert not passes(body, texts, nested - 1, commas)
    assert not passes(body, texts, nested, commas - 1)


def passes(body: bytes, *limits: int) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        for name, most in zip(("MAX_TEXTS", "MAX_NESTED", "MAX_VALUES"), limits, strict=True):
            patch.setattr(bodies, name, most)
        try:
            check_shape(body)
        except ApiError:
            return False
        return True


PART = '{"type":"text","text":""}'
MESSAGE = '{"role":"user","content":[' + ",".join([PART] * 200) + "]}"
MOST: dict[str, tuple[type[BaseModel], bytes]] = {
    "token ids": (CompletionRequest, b'{"prompt":[' + b",".join([b"1"] * MAX_VALUES) + b"]}"),
    "ids to read": (DetokenizeRequest, b'{"tokens":[' + b",".join([b"1"] * MAX_VALUES) + b"]}"),
    "parts": (ChatRequest, ('{"messages":[' + ",".join([MESSAGE] * (MAX_TEXTS // 804)) + "]}").encode()),
    "lists": (CompletionRequest, b'{"prompt":"a","x":[' + b",".join([b"[]"] * (MAX_NESTED - 2)) + b"]}"),
    "texts": (CompletionRequest, b'{"prompt":[' + b",".join([b'"a"'] * (MAX_TEXTS - 2)) + b"]}"),
}
TIMES = 50
"""Times what a loop over a million numbers takes; five were measured for the most that is taken. Machines and Pythons
differ by a few times, and what grows faster than its body by thousands."""


@pytest.fixture
def frozen() -> Iterator[None]:
    """What the other tests left is out of the collector's sight, as what a server loaded is."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _thread_seconds(work: Callable[[], object]) -> float:
    """The least of three: what else the core does only adds."""

    def once() -> float:
        began = thread_time()
        work()
        return thread_time() - began

    return min(once() for _ in range(3))


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("name", MOST)
def test_the_most_that_is_taken_is_made_quickly(name: str) -> None:
    kind, body = MOST[name]
    check_shape(body)

    def make() -> None:
        value = pieces.read(body)
        try:
            kind.model_validate(value | {"model": "tiny"})
        except ValidationError as error:
            assert name in ("lists", "texts"), error

    def loop() -> None:
        for _ in range(1_000_000):
            pass

    assert _thread_seconds(make) < TIMES * _thread_seconds(loop)


def test_others_go_on_while_a_long_text_is_made(model: Path) -> None:
    """The backend would hold Python's lock: then the thread's whole work lies between two turns of the loop."""
    tokenizer = Tokenizer.from_directory(model)
    assert tokenizer is not None
    ids, clocks = [65] * (1 << 19), []

    def decode() -> str:
        clocks.append(pthread_getcpuclockid(get_ident()))
        return tokenizer.decode(ids)

    async def worked() -> list[float]:
        """Seconds that the thread has worked at each turn of the loop."""
        making, found = asyncio.create_task(asyncio.to_thread(decode)), [0.0]
        while not making.done():
            await asyncio.sleep(0)
            if clocks and not making.done():
                found.append(clock_gettime(clocks[0]))
        assert len(making.result()) == len(ids)
        return found

    told = asyncio.run(worked())
    assert max(after - before for before, after in pairwise(told)) < 0.6 * told[-1]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 4)


NUMBERS = st.lists(st.integers(-9, 9_999), max_size=9)
BODIES = st.fixed_dictionaries({"a": VALUES | NUMBERS | st.lists(NUMBERS, max_size=5), "b": VALUES})


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=BODIES, indent=st.none() | st.just(1), data=st.data())
@pytest.mark.usefixtures("small_pieces")
def test_pieces_are_the_whole(value: Any, indent: int | None, data: st.DataObject) -> None:
    """Also where a byte is missing, or one too many."""
    body = json.dumps(value, indent=indent, ensure_ascii=False).encode()
    assert pieces.read(body) == value
    at, more = (
        data.draw(st.integers(0, len(body) - 1)),
        data.draw(st.sampled_from([b",", b"]", b"[", b"{", b"}", b'"', b"1", b"\xff", b""])),
    )
    wrong = body[:at] + more + body[at + (not more) :]
    try:
        expected = msgspec.json.decode(wrong)
    except msgspec.DecodeError:
        with pytest.raises(msgspec.DecodeError):
            pieces.read(wrong)
    else:
        assert pieces.read(wrong) == expected


class _Decoder:
    """Notes how many values were made in one go."""

    def __init__(self, made: list[int]) -> None:
        self._made = made

    def decode(self, text: bytes) -> Any:
        value = msgspec.json.decode(text)
        self._made.append(text.count(b",") if isinstance(value, list | dict) else 0)
        return value


@pytest.mark.parametrize("name", ["token ids", "ids to read", "many prompts", "messages"])
def test_no_piece_holds_many_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(pieces, "_VALUE", _Decoder(made))
    prompts = {"prompt": [list(range(5000))] * 100 + [list(range(300_000))]}
    messages = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a, b"}] * 50}] * 300}
    others = {"many prompts": json.dumps(prompts), "messages": json.dumps(messages)}
    body = others[name].encode() if name in others else MOST[name][1]
    assert pieces.read(body) == json.loads(body)
    assert max(made) < pieces.PIECE


def test_long_lists_of_all_kinds_are_refused() -> None:
    """They cannot be read in pieces."""
    mixed = json.dumps({"prompt": "a", "x": ["a", *[1] * (pieces.MAX_MIXED + 2)]}).encode()
    refused = asyncio.run(post(mixed)).json()["error"]
    assert refused["code"] == "too_many_values"
    assert refused["message"] == "the body holds 131074 values in a list of more than numbers; at most 131072 are taken"


@contextmanager
def alone(busy: Lock) -> Iterator[None]:
    assert busy.acquire(blocking=False), "another one is being read"
    try:
        yield
    finally:
        busy.release()


def test_a_large_body_is_read_and_checked_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one at a time: a thread for each would hold the loop up the longer."""
    threads: list[int] = []
    busy = Lock()

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            threads.append(get_ident())
            with alone(busy):
                return work(*given)

        return call

    for name in ("check_shape", "read"):
        monkeypatch.setattr(bodies, name, noted(getattr(bodies, name)))
    monkeypatch.setattr(BoundedRoute, "_checked", noted(BoundedRoute._checked))
    body = json.dumps({"a": "b" * LARGE}).encode()

    responses = asyncio.run(post_all(body, body, body))
    assert {response.text for response in responses} == {"1"}
    assert len(threads) == 9 and get_ident() not in threads
    assert asyncio.run(post(b'{"a": 1}')).text == "1"
    assert threads[9:] == [get_ident()], "a small one is not worth a thread"


@pytest.mark.parametrize("wrong", [-1, 1 << 32, 1.5, True, "a", None, [1]])
def test_a_wrong_token_id_is_named_by_its_place(wrong: Any) -> None:
    """As if the list had been checked in one go."""
    ids = [1] * (2 * CHECKED + 7)
    ids[CHECKED + 3] = wrong
    with pytest.raises(ValidationError) as caught:
        DetokenizeRequest.model_validate({"tokens": ids})
    (error,) = caught.value.errors(include_url=False)
    with pytest.raises(ValidationError) as plain:
        DetokenizeRequest.model_validate({"tokens": ids[: CHECKED - 1] + [wrong]})
    (expected,) = plain.value.errors(include_url=False)
    assert error == expected | {"loc": ("tokens", CHECKED + 3)}
    assert DetokenizeRequest.model_validate({"tokens": [1] * CHECKED * 3}).tokens == [1] * CHECKED * 3


def test_a_large_body_that_is_no_json_is_refused_as_a_small_one_is(server: Server) -> None:
    headers = {"Content-Type": "application/json"}
    for text in ("{", '{"prompt": NaN}', '{"prompt": "\ud800"}', "[" * LARGE, "9" * LARGE, '{"a": 1} {"b": 2}'):
        body = text.encode(errors="surrogatepass") + b" " * LARGE
        response = httpx.post(server.url + "/v1/completions", content=body, headers=headers)
        assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_json", response.text


def test_a_large_body_is_answered_as_a_small_one_is(server: Server) -> None:
    asked = {"model": "tiny", "prompt": "a", "max_tokens": 5, "temperature": 0}
    small = httpx.post(server.url + "/v1/completions", json=asked)
    body = json.dumps(asked).encode() + b" " * LARGE
    for kind, status in (("application/json", 200), ("text/plain", 400)):
        large = httpx.post(server.url + "/v1/completions", content=body, headers={"Content-Type": kind})
        assert large.status_code == status
        if status == 200:
            assert large.json()["choices"] == small.json()["choices"]
    unknown = httpx.post(server.url + "/v1/completions", json=asked | {"x": "a" * LARGE})
    assert unknown.json()["error"]["param"] == "x"
