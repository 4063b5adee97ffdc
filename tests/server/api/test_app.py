"""The way of a request through the application: those with a body go straight to their routes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI

from outpace.server.api.app import PATHS, make_app
from outpace.server.api.backend import Backend
from outpace.server.engine_client.client import EngineClient
from outpace.server.engine_client.restarts import Restarts
from outpace.server.monitoring.metrics import Metrics
from outpace.server.monitoring.recent import Recent
from outpace.server.text.texts import Texts
from outpace.server.wire import Start
from server.backends import bare_backend

POSTS = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"model": "tiny", "prompt": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
}
"""A sound body for each."""
JSON = {"Content-Type": "application/json"}


def asked(method: str, path: str, *, raises: bool = False, **options: Any) -> httpx.Response:
    """What a server says whose engine never was there."""
    start = Start(model="tiny", drafter=None, dtype="auto", device="cpu", aux_boundaries=None, options={})
    client = EngineClient(
        start,
        slots=None,
        queue_limit=1,
        restarts=Restarts(0),
        start_timeout=0.0,
        hang_timeout=0.0,
        tell=lambda *_: None,
    )
    backend = bare_backend(client=client, texts=Texts(None), metrics=Metrics(client), recent=Recent())

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(backend, keys=(), max_body_bytes=1 << 20), raise_app_exceptions=raises)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            return await http.request(method, path, **options)

    return asyncio.run(ask())


@pytest.fixture
def through_fastapi(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that FastAPI is asked for."""
    paths: list[str] = []
    call = FastAPI.__call__

    async def noted(self: FastAPI, scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope["path"])
        await call(self, scope, receive, send)

    monkeypatch.setattr(FastAPI, "__call__", noted)
    return paths


@pytest.mark.parametrize("path", POSTS)
def test_a_body_goes_straight_to_its_route(path: str, through_fastapi: list[str]) -> None:
    """It comes to the endpoint: there is no engine, or no tokenizer."""
    response = asked("POST", path, json=POSTS[path])
    assert response.status_code in (400, 503)
    assert response.json()["error"]["code"] in ("engine_down", "invalid_value")
    assert not through_fastapi


def test_all_that_take_bodies_are_known() -> None:
    document = asked("GET", "/openapi.json").json()["paths"]
    assert {path for path, operations in document.items() if "post" in operations} == set(POSTS) <= PATHS


@pytest.mark.parametrize("path", POSTS)
def test_other_methods_are_told_which_one_is_taken(path: str, through_fastapi: list[str]) -> None:
    response = asked("GET", path)
    assert response.status_code == 405 and response.headers["allow"] == "POST"
    assert response.json()["error"]["code"] == "method_not_allowed"
    assert through_fastapi == [path]


NO_OBJECT = "the body must be a JSON object, sent with Content-Type: application/json"
WRONG: dict[str, tuple[bytes, dict[str, str], str]] = {
    "nothing": (b"", JSON, NO_OBJECT),
    "no type": (b"{}", {}, NO_OBJECT),
    "text": (b"{}", {"Content-Type": "text/plain"}, NO_OBJECT),
    "null": (b"null", JSON, NO_OBJECT),
    "a list": (b"[]", JSON, NO_OBJECT),
    "no JSON": (b'{"a":', JSON, "the body is no JSON: Expecting value"),
    "deep": (b"[" * 60_000, JSON, "the body cannot be read: it is nested too deep, or holds a number that is too long"),
    "long": (b"1" * 5_000, JSON, "the body cannot be read: it is nested too deep, or holds a number that is too long"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_object_is_refused(name: str) -> None:
    body, headers, said = WRONG[name]
    response = asked("POST", "/tokenize", content=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": said,
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_json",
    }


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"])
def test_json_has_several_names(kind: str) -> None:
    body = json.dumps({"prompt": "x", "unknown": 1}).encode()
    response = asked("POST", "/tokenize", content=body, headers={"Content-Type": kind})
    assert response.json()["error"]["param"] == "unknown"


def test_a_defect_is_told_and_left_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn writes the traceback of what is raised."""

    def broken(self: Backend, name: str | None) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Backend, "check_model", broken)
    response = asked("POST", "/tokenize", json=POSTS["/tokenize"])
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    with pytest.raises(ZeroDivisionError):
        asked("POST", "/tokenize", json=POSTS["/tokenize"], raises=True)
