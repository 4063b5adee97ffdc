"""Data-parallel replicas under Ray Serve: in each of its actors a server of ours, engine included.

    pip install 'outpace[ray]'
    serve run outpace.cli.replicas:app config=server.toml replicas=2

Ray Serve listens, spreads requests over the replicas and replaces those that are unhealthy; each takes as many GPUs as
its model is cut over. The file is that of `outpace serve --config`; `host` and `port` are Ray Serve's there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ray import serve

from outpace.cli.serve import part, read_config, start_of
from outpace.config import EngineConfig
from outpace.errors import ConfigError
from outpace.server.replica import Replica
from outpace.server.settings import ServerConfig
from outpace.server.wire import Start


class Arguments(BaseModel):
    """What follows the name on `serve run`'s command line."""

    model_config = ConfigDict(extra="forbid")

    config: Path
    replicas: int = Field(1, ge=1)


class Actor:
    """What Ray Serve makes one of in each actor, and awaits."""

    async def __init__(self, engine: Start, config: ServerConfig) -> None:  # type: ignore[misc]
        self._replica = await Replica.start(engine, config)

    def __serve_build_asgi_app__(self) -> Any:
        return self._replica.app

    def check_health(self) -> None:
        """Ray Serve replaces a replica for which this raises."""
        self._replica.check_health()


def app(given: dict[str, Any]) -> Any:
    """The application that Ray Serve runs.

    Args:
        given: `Arguments`, as texts or as what they are.

    Raises:
        ConfigError: the file is wrong, or says where to listen.
    """
    arguments = Arguments(**given)
    settings = read_config(arguments.config)
    for name in ("host", "port"):
        if name in settings:
            raise ConfigError(
                f"--config {arguments.config}: {name} is {settings[name]!r}, but Ray Serve listens; leave it out, and "
                "see `serve start --help`"
            )
    engine, config = start_of(settings), ServerConfig(**part(settings, ServerConfig))
    options = EngineConfig(**engine.options)
    deployed = serve.deployment(
        name="outpace",
        num_replicas=arguments.replicas,
        max_ongoing_requests=(config.max_concurrency or options.max_rows) + config.queue_limit,
        graceful_shutdown_timeout_s=config.drain_timeout,
        ray_actor_options={"num_gpus": 0 if engine.device == "cpu" else options.tensor_parallel},
    )
    return deployed(serve.ingress()(Actor)).bind(engine, config)
