"""The ASGI application: endpoints inside, guard and observer around them."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import FastAPI
from starlette.types import ASGIApp

import outpace
from outpace.server import api_errors, openapi
from outpace.server.guard import Guard
from outpace.server.observing import Observing
from outpace.server.routes import Backend, router

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


def make_app(backend: Backend, *, keys: Collection[bytes], max_body_bytes: int) -> ASGIApp:
    """The application over a backend model."""
    app = FastAPI(title="Outpace", version=outpace.__version__, docs_url=None, redoc_url=None)
    app.include_router(router(backend))
    api_errors.install(app)
    openapi.install(app, wants_key=bool(keys))
    return Observing(Guard(app, keys, max_body_bytes), backend.metrics, backend.recent, PATHS)
