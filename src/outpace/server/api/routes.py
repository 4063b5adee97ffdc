"""The endpoints: what is asked, made into what the engine understands."""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import outpace
from outpace.errors import RequestError
from outpace.server.answering.formats import ChatFormat, CompletionFormat
from outpace.server.answering.response import whole
from outpace.server.api.answer import answer
from outpace.server.api.backend import Backend
from outpace.server.api.page import status_page
from outpace.server.asking.conversation import ChatMessage
from outpace.server.asking.protocol import (
    ChatRequest,
    CompletionRequest,
    Conversing,
    DetokenizeRequest,
    TokenizeRequest,
)
from outpace.server.asking.sampling import refused
from outpace.server.asking.tools import blamed, offer_of
from outpace.server.http.api_errors import ApiError
from outpace.server.http.bodies import BoundedRoute

STATE_FIELDS = ("pages", "k", "why", "weighed", "control", "graphs", "phases", "preempted")


def router(backend: Backend) -> APIRouter:
    """All endpoints."""
    routes = APIRouter(route_class=BoundedRoute)

    @routes.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatRequest, request: Request) -> Response:
        backend.check_model(body.model)
        offer = offer_of(body, backend.tool_form)
        try:
            prompt = await _chat_ids(backend, body, body.messages, None if offer is None else offer.tools)
            return await answer(backend, request, body, [prompt], ChatFormat(), offer)
        except RequestError as error:
            raise blamed(error, offer) or refused(error, body) from error

    @routes.post("/v1/completions", response_model=None)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        backend.check_model(body.model)
        try:
            context = backend.limits().max_context
            prompts = [await backend.texts.prompt_ids(prompt, context) for prompt in body.prompts]
            return await answer(backend, request, body, prompts, CompletionFormat())
        except RequestError as error:
            raise refused(error, body) from error

    @routes.post("/tokenize", response_model=None)
    async def tokenize(body: TokenizeRequest) -> Response:
        backend.check_model(body.model)
        _check_tokenized(body)
        context = backend.limits().max_context
        if body.messages is not None:
            tools = [tool.plain() for tool in body.tools or ()] or None
            tokens = await _chat_ids(backend, body, body.messages, tools)
        else:
            assert body.prompt is not None
            special = body.add_special_tokens is not False
            tokens = await backend.texts.prompt_ids(body.prompt, context, add_special=special)
        return whole({"tokens": tokens, "count": len(tokens), "max_model_len": context})

    @routes.post("/detokenize", response_model=None)
    async def detokenize(body: DetokenizeRequest) -> Response:
        backend.check_model(body.model)
        return whole({"prompt": await backend.texts.text(body.tokens, skip_special=body.skip_special_tokens)})

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(backend)]}

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        backend.check_model(name)
        return _model(backend)

    @routes.get("/health")
    async def health() -> JSONResponse:
        down = backend.client.status == "down"
        return JSONResponse({"status": backend.client.status}, 503 if down else 200)

    @routes.get("/ready")
    async def ready() -> JSONResponse:
        status, reason = backend.client.status, backend.client.reason
        return JSONResponse({"status": status, "reason": reason}, 200 if status == "ready" else 503)

    @routes.get("/metrics", response_model=None)
    async def metrics() -> Response:
        return Response(backend.metrics.text(await backend.client.state()), media_type="text/plain; version=0.0.4")

    routes.add_api_route("/", status_page(), methods=["GET"], response_model=None)

    @routes.get("/v1/outpace/state")
    async def state() -> dict[str, Any]:
        return await _state(backend)

    return routes


def _check_tokenized(body: TokenizeRequest) -> None:
    """A text or a conversation, each with its own fields.

    Raises:
        ApiError: it is both or neither, or has a field of the other.
    """
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either prompt or messages", code="invalid_value", param="prompt")
    if body.messages is not None and body.add_special_tokens:
        message = "add_special_tokens is of prompt; a conversation's tokens are its template's: leave it out"
        raise ApiError(400, message, code="invalid_value", param="add_special_tokens")
    for name in ("tools", *Conversing.model_fields) if body.messages is None else ():
        if getattr(body, name) is not None:
            raise ApiError(400, f"{name} is of messages: leave it out", code="invalid_value", param=name)


async def _chat_ids(
    backend: Backend, body: Conversing, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]] | None
) -> list[int]:
    if body.continue_final_message and body.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt exclude each other: leave one out"
        raise ApiError(400, message, code="invalid_value", param="continue_final_message")
    plain = [message.plain() for message in messages]
    return await backend.texts.chat_ids(plain, backend.limits().max_context, tools, **body.rendering)


def _model(backend: Backend) -> dict[str, Any]:
    limit = backend.client.described.get("engine", {}).get("max_context")
    return {
        "id": backend.name,
        "object": "model",
        "created": backend.created,
        "owned_by": "outpace",
        "max_model_len": limit,
    }


async def _state(backend: Backend) -> dict[str, Any]:
    client, desk = backend.client, backend.client.desk
    now = await client.state()
    return {
        "time": time(),
        "model": backend.name,
        "version": outpace.__version__,
        "status": client.status,
        "reason": client.reason,
        "engine_pid": client.pid,
        "engine_deaths": client.num_deaths,
        "running": desk.num_running,
        "waiting": desk.num_waiting,
        "slots": desk.slots,
        "totals": desk.totals.as_dict(),
        "now": None if now is None else {field: getattr(now, field) for field in STATE_FIELDS},
        "recent": backend.recent.listed(),
        "server": backend.settings,
        "settings": client.described,
    }
