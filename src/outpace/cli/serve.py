"""`outpace serve MODEL`: an OpenAI-compatible server."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import msgspec

import outpace
from outpace import EngineConfig
from outpace.cli import options
from outpace.distributed.launcher import Launched, launched
from outpace.errors import ConfigError, EngineError
from outpace.models.source import check_name
from outpace.server.run import serve
from outpace.server.settings import ServerConfig
from outpace.server.wire import Start
from outpace.wording import count_of, reason, suggestion

SUMMARY = "serve a model over HTTP, as OpenAI's API does"
DESCRIPTION = """
Serves a model to every OpenAI client: /v1/chat/completions, /v1/completions, /v1/models; beside them /tokenize,
/detokenize, /health, /ready, /metrics (Prometheus) and /v1/outpace/state, which a status page at / shows to people.
What is asked for and not supported is refused by name with a 400, never ignored.

The engine runs in a process of its own. If it dies, answers that it had begun fail with a 503 that says why, those
that waited go to the next engine, which starts by itself. SIGTERM lets running answers finish. Logs are JSON on
stderr without any --json: a line a request (of those for health, metrics and state, if they are refused or fail), and
one about speed every --log-interval seconds.

What a flag says counts, then what the file of --config says, then the default. Keys are added up: those of flags or the
file, those of --api-key-file and those of OUTPACE_API_KEY.

Tools are offered to models whose chat template knows them; see --tool-parser. What a model writes as a call is told as
one, also while it is written.

Every answer's usage says what speculation came to in it: accept_length (of the cycles that
drafted), cycles, emitted, drafted and accepted, also by place in a cycle. A request may set "speculation": "off",
"auto" or {"max_k": 3}; its text stays the same.

examples:
  outpace serve smollm2
  outpace serve ./my-model --drafter ./my-eagle3-drafter --port 8080
  outpace serve ./my-model --host 0.0.0.0 --api-key-file keys.txt --max-rows 32
  outpace serve --config server.toml --port 8001      flags win over the file
  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}]}'

server.toml names options as here, without dashes in front; model is one of them:
  model = "./my-model"
  drafter = "./my-eagle3-drafter"
  port = 8080
  max_rows = 32
"""
MODEL_FIELDS = ("model", "drafter", "dtype", "device", "aux_boundaries")
DIED = 1


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = options.new_parser(subparsers, "serve", SUMMARY, DESCRIPTION)
    options.add_model_flags(parser, model="the one in --config")
    parser.set_defaults(**dict.fromkeys(MODEL_FIELDS))  # what was not given may be in the file
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with any of these options")
    options.add_fields(parser.add_argument_group("server"), ServerConfig)


def run(args: argparse.Namespace) -> int:
    """Serves until a signal comes; 1 if the engine died too often. Of torchrun's ranks the first serves."""
    settings = _settings(args)
    here = launched()
    if here is not None:
        settings |= _under_torchrun(settings, here)
    engine, config = start_of(settings), ServerConfig(**part(settings, ServerConfig))
    try:
        if here is not None and here.rank:
            _follow(engine)
        serve(engine, config)
    except EngineError as error:
        print(f"outpace: {error}", file=sys.stderr)
        return DIED
    return 0


def _follow(engine: Start) -> None:
    """Does what the first rank says, and ends this process with it."""
    outpace.LLM(  # looked up now: it brings torch, which the server's process does without
        engine.model,
        drafter=engine.drafter,
        dtype=engine.dtype,
        device=engine.device,
        aux_boundaries=engine.aux_boundaries,
        **engine.options,
    )
    raise AssertionError("a rank that follows came back")


def _under_torchrun(settings: Mapping[str, Any], here: Launched) -> dict[str, Any]:
    """What torchrun settles: it starts all ranks again, so the first does not start its engine alone.

    Raises:
        ConfigError: the model would not be shared by the ranks that torchrun started, or the engine be restarted here.
    """
    size = settings.get("tensor_parallel", 1)
    if size != here.size:
        raise ConfigError(
            f"tensor_parallel is {size}, but torchrun started {count_of(here.size, 'rank')}: make them equal"
        )
    if settings.get("max_restarts"):
        raise ConfigError(
            f"max_restarts is {settings['max_restarts']}; torchrun starts ranks again, all together: give it "
            "--max-restarts, and leave this out"
        )
    return {"max_restarts": 0}


class _Raising(argparse.ArgumentParser):
    """Says what is wrong to whoever asked, and ends nothing."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"outpace serve: {message}")


def check_words(model: str, flags: Sequence[str]) -> None:
    """That `outpace serve MODEL FLAGS` has options that there are, with values that may be, and a model that can be.

    Raises:
        ConfigError, CheckpointError: it has not; the message is the one that serve would end with.
    """
    parser = _Raising(prog="outpace")
    add_parser(parser.add_subparsers())
    settings = _settings(parser.parse_args(["serve", model, *flags]))
    start = start_of(settings)
    ServerConfig(**part(settings, ServerConfig))
    for name in (start.model, start.drafter):
        if name not in (None, "auto"):
            check_name(name)


def start_of(settings: Mapping[str, Any]) -> Start:
    """What the engine process is to load.

    Raises:
        ConfigError: no model is named, or a setting is out of its range.
    """
    if not settings.get("model"):
        raise ConfigError('no model is named: outpace serve MODEL, or model = "..." in the file of --config')
    engine = part(settings, EngineConfig)
    EngineConfig(**engine)  # what is wrong is said before a process is started
    drafter = settings.get("drafter", "auto")
    said = {
        "model": settings["model"],
        "drafter": None if drafter == "none" else drafter,
        "dtype": settings.get("dtype", "auto"),
        "device": settings.get("device", "auto"),
        "aux_boundaries": settings.get("aux_boundaries"),
        "options": engine,
    }
    try:
        return msgspec.convert({"type": "Start", **said}, Start)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--config: {error}") from error


def read_config(path: Path) -> dict[str, Any]:
    """The options in a TOML file; names may have dashes or underscores.

    Raises:
        ConfigError: it cannot be read, or holds an option that there is not.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--config {path}: {reason(error)}") from error
    found = {name.replace("-", "_"): value for name, value in content.items()}
    known = {*MODEL_FIELDS, *(field.name for settings in (EngineConfig, ServerConfig) for field in fields(settings))}
    if unknown := sorted(set(found) - known):
        raise ConfigError(
            f"--config {path}: there is no option {unknown[0]!r}{suggestion(unknown[0], known)}; "
            "outpace serve --help lists them all"
        )
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Everything that was set, in the file or, with more weight, by a flag."""
    flags = {name: getattr(args, name) for name in MODEL_FIELDS if getattr(args, name) is not None}
    flags |= options.given(args, EngineConfig) | options.given(args, ServerConfig)
    return (read_config(args.config) if args.config is not None else {}) | flags


def part(settings: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Those settings that are fields of a dataclass."""
    return {field.name: settings[field.name] for field in fields(kind) if field.name in settings}
