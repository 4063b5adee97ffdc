"""A server put together from its settings: the engine's supervisor, and the application over it."""

from __future__ import annotations

import os
from time import time

import msgspec
from starlette.types import ASGIApp

from outpace.errors import ConfigError
from outpace.models.source import locate
from outpace.server.api.app import make_app
from outpace.server.api.backend import Backend
from outpace.server.asking.tools import resolve_format
from outpace.server.awake import DRIVER, Awake, Latency, kernel_decides
from outpace.server.engine_client.client import EngineClient
from outpace.server.engine_client.restarts import Restarts
from outpace.server.looking import Looking
from outpace.server.monitoring import logs
from outpace.server.monitoring.metrics import Metrics
from outpace.server.monitoring.recent import Recent
from outpace.server.settings import ServerConfig, api_keys
from outpace.server.text.texts import Texts
from outpace.server.wire import Start

LOCAL = ("127.0.0.1", "::1", "localhost")


def assemble(engine: Start, config: ServerConfig, looking: Looking | None = None) -> tuple[EngineClient, ASGIApp]:
    """The engine's client, which is yet to be run, and the application that asks it.

    Args:
        engine: what to load.
        config: how to serve it; where to listen is not read.
        looking: of the loop that will serve it, if it can look instead of sleeping.

    Raises:
        CheckpointError: there is no such model, or its tokenizer is broken.
        ConfigError: a key or the tool parser is wrong, or nobody can be kept awake.
    """
    keys = api_keys(config, os.environ.get("OUTPACE_API_KEY"))
    texts = Texts.of(locate(engine.model))
    tool_form = resolve_format(config.tool_parser, texts.chat_template)
    logs.set_up()
    logs.tell("tool calls", {"format": None if tool_form is None else tool_form.name, "parser": config.tool_parser})
    if not keys and config.host not in LOCAL:
        logs.tell("open to everybody", {"host": config.host, "remedy": "give a key: see --api-key-file"})
    looks = bool(config.awake) and not kernel_decides()
    client = EngineClient(
        msgspec.structs.replace(engine, awake=config.awake) if looks else engine,
        slots=config.max_concurrency,
        queue_limit=config.queue_limit,
        restarts=Restarts(config.max_restarts),
        start_timeout=config.start_timeout,
        hang_timeout=config.hang_timeout,
        tell=logs.tell,
    )
    backend = Backend(
        client=client,
        texts=texts,
        metrics=Metrics(client),
        recent=Recent(),
        name=config.served_name or engine.model,
        tool_form=tool_form,
        request_timeout=config.request_timeout,
        default_max_tokens=config.default_max_tokens,
        settings=config.describe(len(keys)),
        created=int(time()),
    )
    app = make_app(
        backend,
        keys=keys,
        max_body_bytes=config.max_body_bytes,
        origins=config.allow_origin,
        awake=_awake(config.awake, client, looking, looks=looks) if config.awake else None,
    )
    return client, app


def _awake(seconds: float, client: EngineClient, looking: Looking | None, *, looks: bool) -> Awake:
    """The kernel is told; or both processes look, which pays where the model has a GPU."""
    if not looks:
        try:
            kernel = Latency()
        except ConfigError as error:
            raise ConfigError(f"awake is {seconds:g}, but {error}") from error
        logs.tell("awake", {"seconds": seconds, "how": "the kernel is told"})
        return Awake(seconds, kernel)
    if looking is None:
        raise ConfigError(
            f"awake is {seconds:g}, but no driver of this machine's kernel puts cores to sleep ({DRIVER}), and this "
            "server's loop cannot look for messages instead of sleeping; leave awake out"
        )
    logs.tell("awake", {"seconds": seconds, "how": "both processes look for messages, if the model is on a GPU"})
    return Awake(seconds, looking, lambda: client.on_gpu)
