"""What a server may be told, beside what its engine is told. The command line and the config file mirror it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from outpace.checks import check_integers, check_real
from outpace.config import MAX_TOKENS
from outpace.errors import ConfigError
from outpace.wording import reason

ToolParser = Literal["auto", "hermes", "llama3", "mistral", "kimi"]
MIB = 1 << 20
DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of the HTTP side. Times are in seconds.

    Raises:
        ConfigError: a value is out of its range.
    """

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every network that this machine is in: then give a key."""
    port: int = 8000
    """Port to listen on; 0 takes a free one, and the log says which."""
    served_name: str | None = None
    """Name of the model towards clients; None takes MODEL as it was given."""
    api_key: tuple[str, ...] = ()
    """Keys of which clients must send one, as `Authorization: Bearer KEY`. Others on the machine can read a command
    line: a file or the environment variable OUTPACE_API_KEY (separated by commas) is safer."""
    api_key_file: str | None = None
    """A file with one such key a line; empty lines and lines with # in front do not count."""
    allow_origin: tuple[str, ...] = ()
    """Origins of web pages that may ask this server out of a browser, such as http://localhost:3000; * is all of them,
    whatever page is open."""
    tool_parser: ToolParser = "auto"
    """How the model spells tool calls; auto is what its chat template teaches."""
    default_max_tokens: int | None = None
    """Most tokens of an answer whose request sets no limit; a request's own may be higher. None is what OpenAI's API
    takes: a chat may go on to the end of the context, a completion has 16."""
    max_concurrency: int | None = None
    """Most answers in the engine at once; the others wait outside and survive its restart. None takes `max_rows`."""
    queue_limit: int = 256
    """Most answers that wait; beyond it a request gets a 503 that says when to try again."""
    request_timeout: float = 600.0
    """Seconds that one request may take, waiting included; then it ends with a 504."""
    drain_timeout: float = 30.0
    """Seconds that running requests may go on after SIGTERM; 5 seconds later all connections are closed."""
    max_connections: int = 1024
    """Most connections at once. One more takes the place of the one that has asked nothing for longest; where all are
    being answered, it is refused with a 503, but for /health and /ready."""
    max_body_bytes: int = 8 * MIB
    """Bytes of the largest request body; a larger one gets a 413."""
    awake: float = 0.0
    """Lets nobody sleep while requests are answered and so many seconds longer; 0 lets them. First tokens come sooner,
    by some tenths of a millisecond where it was measured. Where this machine's kernel puts cores to sleep, it is told
    not to: on Linux, by users who may write to /dev/cpu_dma_latency, as root may. Where it leaves that to a host, as in
    most virtual machines, and the model is on a GPU, both processes look for messages all the time: a core each."""
    log_interval: float = 10.0
    """Seconds between log lines about speed; none is written while nothing runs."""
    start_timeout: float = 600.0
    """An engine that loads its model and gives no sign of life for so many seconds is killed and started again; 0 waits
    for ever. However long it takes to load is no matter, as long as it gets on."""
    hang_timeout: float = 120.0
    """An engine that has work and gives no sign of life for so many seconds is killed and started again; 0 waits for
    ever. A long prefill or the capture of a graph is life."""
    max_restarts: int = 5
    """How often the engine may die within ten minutes, or fail to start in a row, and be started again; then the server
    ends with exit code 1. Where it was never ready, what it was told is wrong: then it is not started again."""

    def __post_init__(self) -> None:
        integers = {
            "port": (0, 65_535),
            "default_max_tokens": (1, MAX_TOKENS),
            "max_concurrency": (1, 65_536),
            "queue_limit": (0, 1 << 20),
            "max_connections": (1, 1 << 20),
            "max_body_bytes": (1024, 32 * MIB),
            "max_restarts": (0, 1000),
        }
        check_integers(self, ConfigError, integers)
        check_real(self, ConfigError, "request_timeout", 0.01, DAY)
        check_real(self, ConfigError, "drain_timeout", 0.0, DAY)
        check_real(self, ConfigError, "start_timeout", 0.0, DAY)
        check_real(self, ConfigError, "hang_timeout", 0.0, DAY)
        check_real(self, ConfigError, "awake", 0.0, DAY)
        check_real(self, ConfigError, "log_interval", 0.1, DAY)
        if self.tool_parser not in get_args(ToolParser):
            raise ConfigError(f"tool_parser is {self.tool_parser!r}; there are {', '.join(get_args(ToolParser))}")
        for origin in self.allow_origin:
            if not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise ConfigError(
                    f"allow_origin is {origin!r}; it must be * or an origin without a path, such as "
                    "http://localhost:3000"
                )
        if not all(self.api_key):
            raise ConfigError("api_key holds an empty key; give a key of at least one character, or none")

    def describe(self, num_keys: int) -> dict[str, Any]:
        """Plain data for JSON, with the number of keys in place of the keys."""
        shown = {name: value for name, value in asdict(self).items() if not name.startswith("api_key")}
        return shown | {"num_keys": num_keys}


def api_keys(config: ServerConfig, environment: str | None) -> tuple[bytes, ...]:
    """All keys that clients may send: given, in the file, and in OUTPACE_API_KEY.

    Args:
        config: the settings.
        environment: what OUTPACE_API_KEY holds; None if it is not set.

    Raises:
        ConfigError: the file cannot be read, or it or the variable holds no key though it is there.
    """
    named = [] if environment is None else [key for key in map(str.strip, environment.split(",")) if key]
    if environment is not None and not named:
        raise ConfigError("OUTPACE_API_KEY is set and holds no key: give it one, or unset it to serve without keys")
    keys = [*config.api_key, *named]
    if config.api_key_file is not None:
        keys += _keys_in(Path(config.api_key_file))
    return tuple(key.encode(errors="surrogateescape") for key in keys)  # any bytes of the environment's


def _keys_in(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_key_file {path} cannot be read: {reason(error)}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"api_key_file {path} holds no key; write one a line, or leave it out")
    return keys
