"""The endpoints: what is asked, made into what the engine understands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import outpace
from outpace.config import SamplingParams
from outpace.engine.limits import Limits
from outpace.errors import RequestError
from outpace.models.text.tool_formats import ToolFormat
from outpace.server.answering.calling import Calling
from outpace.server.answering.formats import ChatFormat, CompletionFormat, Envelope, Format
from outpace.server.answering.reading import Reader
from outpace.server.answering.response import Answering, whole
from outpace.server.api.page import status_page
from outpace.server.asking.conversation import ChatMessage
from outpace.server.asking.protocol import (
    MAX_CHOICES,
    Asked,
    ChatRequest,
    CompletionRequest,
    Conversing,
    DetokenizeRequest,
    TokenizeRequest,
)
from outpace.server.asking.sampling import choices, params_of, refused
from outpace.server.asking.tools import Offer, blamed, offer_of, params_under
from outpace.server.engine_client.client import EngineClient
from outpace.server.http.api_errors import ApiError
from outpace.server.http.bodies import BoundedRoute
from outpace.server.http.observing import facts_of
from outpace.server.monitoring.metrics import Metrics
from outpace.server.monitoring.recent import Recent
from outpace.server.text.texts import Texts

STATE_FIELDS = ("pages", "k", "why", "break_even", "break_even_k", "control", "graphs", "phases", "preempted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What the endpoints work with."""

    client: EngineClient
    texts: Texts
    metrics: Metrics
    recent: Recent
    name: str
    """Of the model, towards clients."""
    tool_form: ToolFormat | None
    """How the model spells tool calls, as far as that is known."""
    request_timeout: float
    settings: dict[str, Any]
    """Of the server, without its keys."""
    created: int


def router(backend: Backend) -> APIRouter:
    """All endpoints."""
    routes = APIRouter(route_class=BoundedRoute)

    @routes.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatRequest, request: Request) -> Response:
        _check_model(backend, body.model)
        offer = offer_of(body, backend.tool_form)
        try:
            prompt = await _chat_ids(backend, body, body.messages, None if offer is None else offer.tools)
            return await _answer(backend, request, body, [prompt], ChatFormat(), offer)
        except RequestError as error:
            raise blamed(error, offer) or refused(error, body) from error

    @routes.post("/v1/completions", response_model=None)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        _check_model(backend, body.model)
        try:
            context = _limits(backend).max_context
            prompts = [await backend.texts.prompt_ids(prompt, context) for prompt in body.prompts]
            return await _answer(backend, request, body, prompts, CompletionFormat())
        except RequestError as error:
            raise refused(error, body) from error

    @routes.post("/tokenize", response_model=None)
    async def tokenize(body: TokenizeRequest) -> Response:
        _check_model(backend, body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give either prompt or messages", code="invalid_value", param="prompt")
        context = _limits(backend).max_context
        if body.messages is not None:
            tools = [tool.plain() for tool in body.tools or ()] or None
            tokens = await _chat_ids(backend, body, body.messages, tools)
        else:
            assert body.prompt is not None
            tokens = await backend.texts.prompt_ids(body.prompt, context, add_special=body.add_special_tokens)
        return whole({"tokens": tokens, "count": len(tokens), "max_model_len": context})

    @routes.post("/detokenize", response_model=None)
    async def detokenize(body: DetokenizeRequest) -> Response:
        _check_model(backend, body.model)
        return whole({"prompt": await backend.texts.text(body.tokens, skip_special=body.skip_special_tokens)})

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(backend)]}

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        _check_model(backend, name)
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


async def _chat_ids(
    backend: Backend, body: Conversing, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]] | None
) -> list[int]:
    if body.continue_final_message and body.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt exclude each other: leave one out"
        raise ApiError(400, message, code="invalid_value", param="continue_final_message")
    plain = [message.plain() for message in messages]
    return await backend.texts.chat_ids(plain, _limits(backend).max_context, tools, **body.rendering)


async def _answer(
    backend: Backend,
    request: Request,
    asked: Asked,
    prompts: Sequence[list[int]],
    form: Format,
    offer: Offer | None = None,
) -> Response:
    """Every prompt's choices, one after the other.

    Raises:
        ApiError, OutpaceError, TimeoutError: there is no answer.
    """
    num_choices = asked.n or 1
    if num_choices * len(prompts) > MAX_CHOICES:
        raise ApiError(
            400,
            f"{len(prompts)} prompts with n {num_choices} are {num_choices * len(prompts)} answers; one request may "
            f"ask for {MAX_CHOICES}",
            code="invalid_value",
            param="n",
        )
    _check_fits(asked)
    asked = _with_word_ids(backend, asked)
    if asked.labels:
        facts_of(request.scope).update(asked.labels)
    limits, wanted = _limits(backend), list[tuple[list[int], SamplingParams]]()
    for prompt in prompts:
        params = params_under(params_of(asked, limits.room(len(prompt))), offer, backend.texts.special_id)
        limits.check(prompt, params)  # a stream whose second prompt is refused later would have begun
        wanted += [(prompt, choice) for choice in choices(params, num_choices)]
    echoed = await _echoed(backend, prompts, num_choices) if asked.echoes else None  # before anything runs
    answering = Answering(
        request=request,
        envelope=Envelope(form, backend.name),
        submission=backend.client.submit(wanted, backend.request_timeout, () if offer is None else offer.form.special),
        num_prompts=tuple(map(len, prompts)),
        explain=lambda error: blamed(error, offer) or refused(error, asked),
        include_usage=asked.include_usage,
        continuous_usage=asked.continuous_usage,
        reader=Reader(
            spell=backend.texts.spell,
            columnar=form.columnar,
            echoed=echoed,
            tells_prompt=asked.prompt_logprobs is not None,
            calling=None if offer is None else partial(Calling, offer, early=bool(asked.stream)),
        ),
    )
    return await answering.respond(stream=bool(asked.stream))


def _check_fits(asked: Asked) -> None:
    """Fields that mean nothing without another.

    Raises:
        ApiError: one was given alone.
    """
    if isinstance(asked, ChatRequest) and asked.top_logprobs and not asked.logprobs:
        raise ApiError(400, "top_logprobs need logprobs: true", code="invalid_value", param="top_logprobs")
    if isinstance(asked, CompletionRequest) and asked.best_of not in (None, asked.n or 1):
        message = f"best_of is {asked.best_of}; all answers are told, so it must be n, which is {asked.n or 1}"
        raise ApiError(400, message, code="invalid_value", param="best_of")


def _with_word_ids(backend: Backend, asked: Asked) -> Asked:
    """The request with its bad words as token ids.

    Raises:
        ApiError: they are texts, and there is no tokenizer for them.
    """
    if not asked.bad_words:
        return asked
    try:
        return asked.model_copy(update={"bad_words": backend.texts.word_ids(asked.bad_words)})
    except RequestError as error:
        raise ApiError(400, str(error), code="invalid_value", param="bad_words") from error


async def _echoed(backend: Backend, prompts: Sequence[list[int]], num_choices: int) -> tuple[str, ...]:
    """The prompt's text before each answer."""
    texts = [await backend.texts.text(prompt, skip_special=True) for prompt in prompts]
    return tuple(text for text in texts for _ in range(num_choices))


def _limits(backend: Backend) -> Limits:
    """Of the engine, or of the one that was there last.

    Raises:
        Unavailable: no engine was ever ready, or nothing is taken any more.
    """
    backend.client.check_open()
    engine, target = backend.client.described["engine"], backend.client.described["target"]
    return Limits(
        vocab_size=target["vocab_size"],
        eos_token_ids=tuple(target["eos_token_ids"]),
        max_context=engine["max_context"],
        page_size=engine["page_size"],
        num_pages=engine["num_pages"] - 1,  # one is nobody's
    )


def _check_model(backend: Backend, name: str | None) -> None:
    if name is not None and name != backend.name:
        raise ApiError(
            404,
            f"there is no model {name!r:.100} here; this server has {backend.name!r}",
            code="model_not_found",
            param="model",
        )


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
