"""The ASGI application: endpoints inside, guard and observer around them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

import outpace
from outpace.server.api import openapi
from outpace.server.api.backend import Backend
from outpace.server.api.routes import router
from outpace.server.awake import Awake
from outpace.server.http import api_errors
from outpace.server.http.bodies import BoundedRoute
from outpace.server.http.guard import Guard
from outpace.server.http.observing import ANSWERED, Observing

PATHS = frozenset(
    {
        "/",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/v1/outpace/state",
        "/tokenize",
        "/detokenize",
        "/health",
        "/ready",
        "/metrics",
    }
)
"""What metrics tell apart; whatever else clients think of is counted as one."""
EXPOSED = ("X-Request-Id", "Retry-After")
"""Headers of answers that pages may read."""


def make_app(
    backend: Backend,
    *,
    keys: Collection[bytes],
    max_body_bytes: int,
    origins: Sequence[str] = (),
    awake: Awake | None = None,
) -> ASGIApp:
    """The application over a backend model, which pages from these origins may ask out of a browser."""
    app = FastAPI(title="Outpace", version=outpace.__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    routes = router(backend)
    app.include_router(routes)
    api_errors.install(app, PATHS)
    openapi.install(app, wants_key=bool(keys))
    answering = _with_heads(_straight(app, routes.routes))
    if awake is not None:  # inside of the guard: what is refused wakes nobody
        answering = _kept_awake(answering, awake)
    guarded: ASGIApp = Guard(answering, keys, max_body_bytes)
    if origins:  # around the guard: a browser's question whether it may ask comes without a key
        guarded = CORSMiddleware(
            guarded, origins, allow_methods=("GET", "POST"), allow_headers=("*",), expose_headers=EXPOSED
        )
    return _without_slashes(Observing(guarded, backend.metrics, backend.recent, PATHS))


def _straight(app: ASGIApp, routes: Sequence[BaseRoute]) -> ASGIApp:
    """Hands a request to the route that answers it by itself, past all that FastAPI would do before."""
    bounded = {route.path: route for route in routes if isinstance(route, BoundedRoute)}

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        route = bounded.get(scope["path"]) if scope["type"] == "http" else None
        await (app if route is None or not route.takes(scope["method"]) else route.handle)(scope, receive, send)

    return called


def _with_heads(app: ASGIApp) -> ASGIApp:
    """Answers HEAD as it does GET; the HTTP server leaves the body out."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope, receive, send)

    return called


def _kept_awake(app: ASGIApp, awake: Awake) -> ASGIApp:
    """Requests for answers find the machine's cores awake."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        answers = scope.get("path") in ANSWERED and scope.get("method") == "POST"
        with awake.answering() if answers else nullcontext():
            await app(scope, receive, send)

    return called


def _without_slashes(app: ASGIApp) -> ASGIApp:
    """A slash at a path's end says nothing. A redirect would lead clients behind a proxy astray."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        await app({**scope, "path": path.rstrip("/") or "/"} if path.endswith("/") else scope, receive, send)

    return called
