"""Options that commands share. Those for settings are derived from the dataclasses that hold the settings.

A field's name, type, default and docstring become a flag; a flag that was not given is not passed on, so the default
lives in one place only.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import outpace
from outpace import EngineConfig, SamplingParams
from outpace.errors import ConfigError, RequestError
from outpace.grammar import Grammar

MODEL_HELP = "a directory, a .gguf file, a hub id such as org/name, or the alias smollm2"
DTYPE_HELP = "float32, bfloat16, float16 or auto: what suits the device (default auto)"
DEVICE_HELP = "cpu, cuda, cuda:N or auto: the first GPU, else the CPU (default auto)"
SHORT_NAMES = {"tensor_parallel": ("--tp",)}
"""Names that engines of this field have in common."""
FOR_PROGRAMS = ("logit_bias", "bad_words", "logprobs", "prompt_logprobs")
"""Token ids in a form that nobody types, and answers that no command prints."""
GRAMMAR = "grammar"
"""The field that has a flag for each kind of grammar."""


def new_parser(subparsers: Any, name: str, summary: str, description: str) -> argparse.ArgumentParser:
    """A command's parser; `description` may hold examples and is printed as it is written."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=textwrap.dedent(description).strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON on stdout and nothing else")


def check_writable(path: Path | None) -> None:
    """Before minutes are spent on what is to be written there; None is nowhere.

    Raises:
        ConfigError: no file can be there.
    """
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise ConfigError(f"cannot write {path}: name a file in a directory that exists")


def write(path: Path, text: str) -> None:
    """Raises ConfigError where that cannot be; `check_writable` finds most of it out before anything is measured."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; name a file in a directory that exists") from None


def api_key() -> str | None:
    """For asking servers: what the environment gives."""
    return os.environ.get("OPENAI_API_KEY") or None


def add_model_flags(parser: argparse.ArgumentParser, *, model: str | None = None, skip: Collection[str] = ()) -> None:
    """The model, its drafter, where and in what format they run, and every field of `EngineConfig` but `skip`.

    With `model` the positional argument may be left out and means that one.
    """
    if model is None:
        parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    else:
        parser.add_argument("model", metavar="MODEL", nargs="?", default=model, help=f"{MODEL_HELP} (default {model})")
    group = parser.add_argument_group("model")
    group.add_argument(
        "--drafter",
        default="auto",
        help="an EAGLE-3 drafter: a directory or a hub id; auto is the one shipped for the model, none decodes plainly "
        "(default auto)",
    )
    group.add_argument("--dtype", default="auto", help=DTYPE_HELP)
    group.add_argument("--device", default="auto", help=DEVICE_HELP)
    group.add_argument(
        "--aux-boundaries",
        type=int,
        nargs="+",
        metavar="B",
        help="layers, from 0 on, whose inputs the drafter taps, where its checkpoint is wrong or silent about them",
    )
    add_fields(parser.add_argument_group("engine"), EngineConfig, skip=skip)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Every field of `SamplingParams` but those for programs; for the grammar, a flag for each kind."""
    add_fields(parser.add_argument_group("sampling"), SamplingParams, skip=(*FOR_PROGRAMS, GRAMMAR))
    kinds = parser.add_argument_group("what the answer is written in, one of").add_mutually_exclusive_group()

    def add(flag: str, metavar: str, summary: str, **more: Any) -> None:
        kinds.add_argument(flag, dest=GRAMMAR, default=argparse.SUPPRESS, metavar=metavar, help=summary, **more)

    add("--json-schema", "FILE", "JSON that the schema in FILE admits", type=_read_as(Grammar.json_schema))
    add("--regex", "PATTERN", "a text that a regular expression matches as a whole", type=_checked(Grammar.regex))
    add("--choice", "TEXT", "one of some texts; once for each", type=_nonempty, action="append")
    add(
        "--ebnf", "FILE", "rules in FILE: EBNF with a rule root, or Lark with a rule start", type=_read_as(Grammar.ebnf)
    )


def load_llm(args: argparse.Namespace, **changes: Any) -> outpace.LLM:
    """The engine that the flags of `add_model_flags` describe; `changes` are settings that the command insists on."""
    return outpace.LLM(  # looked up now: it brings torch, which a command that only parses does without
        args.model,
        drafter=None if args.drafter == "none" else args.drafter,
        dtype=args.dtype,
        device=args.device,
        aux_boundaries=args.aux_boundaries,
        **{**given(args, EngineConfig), **changes},
    )


def refuse_ranks(args: argparse.Namespace, command: str) -> None:
    """For commands that make several engines over one model, which a model cut over ranks does not allow.

    Raises:
        ConfigError: several ranks were asked for.
    """
    ranks = given(args, EngineConfig).get("tensor_parallel", 1)
    if ranks > 1:
        raise ConfigError(
            f"tensor_parallel is {ranks}, and outpace {command} looks into engines of one rank only: leave it out, or "
            f"measure the whole with outpace bench '{args.model} --tensor-parallel {ranks}'"
        )


def sampling(args: argparse.Namespace) -> SamplingParams:
    """The parameters that the flags of `add_sampling_flags` describe."""
    fields = given(args, SamplingParams)
    if isinstance(fields.get(GRAMMAR), tuple):  # texts, given one by one
        fields[GRAMMAR] = Grammar.choice(fields[GRAMMAR])
    return SamplingParams(**fields)


def add_fields(group: argparse._ArgumentGroup, settings: type, *, skip: Collection[str] = ()) -> None:
    """One flag for each field of a settings dataclass: `max_tokens: int` is `--max-tokens N`."""
    types, docs = get_type_hints(settings), field_docs(settings)
    names = {field.name for field in (*dataclasses.fields(settings), *dataclasses.fields(EngineConfig))}
    for field in dataclasses.fields(settings):
        if field.name in skip:
            continue
        parsing = _parsing(types[field.name])
        times = "; once for each" if parsing.get("action") == "append" else ""
        text = _as_typed(docs.get(field.name, ""), names)
        summary = f"{text} {_default(field.default, times)}".strip().replace("%", "%%")
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            *SHORT_NAMES.get(field.name, ()),
            dest=field.name,
            default=argparse.SUPPRESS,
            help=summary,
            **parsing,
        )


def given(args: argparse.Namespace, settings: type) -> dict[str, Any]:
    """The fields of a settings dataclass for which a flag was given."""
    found = {field.name: getattr(args, field.name) for field in dataclasses.fields(settings) if field.name in args}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def words_of(args: argparse.Namespace, settings: type, *, skip: Collection[str] = ()) -> list[str]:
    """The flags of `add_fields` that were given, as one would type them."""
    words: list[str] = []
    for name, value in given(args, settings).items():
        flag = f"--{name.replace('_', '-')}"
        if name in skip:
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, tuple) and isinstance(value[0], str):
            words += [f"{flag}={text}" for text in value]
        else:
            words += [flag, *map(str, value if isinstance(value, tuple) else (value,))]
    return words


def field_docs(settings: type) -> dict[str, str]:
    """The string under each field, on one line. Python keeps it only in the source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(settings))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for statement, following in pairwise(body.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    docs[statement.target.id] = " ".join(text.split())
    return docs


def _as_typed(text: str, names: Collection[str]) -> str:
    """A docstring in the words of the command line: `max_rows` is --max-rows, and None is leaving it out."""
    text = re.sub(r"`(\w+)`", lambda found: f"--{found[1].replace('_', '-')}" if found[1] in names else found[0], text)
    text = re.sub(r"(^|[.:] )None\b", r"\1Leaving it out", text.replace("`", ""))
    return re.sub(r"\bNone\b", "leaving it out", text)


def _default(value: Any, times: str) -> str:
    """What leaving the flag out means, in the words of the command line; for None the field's docstring says it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"(default {'on' if value else 'off'})"
    return f"(default {'none' if value == () else value}{times})"


def _parsing(kind: Any) -> dict[str, Any]:
    """How argparse reads a value of this type; `X | None` reads X, and None is what leaving the flag out means."""
    if isinstance(kind, UnionType):
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(kind) is tuple:
        (part, _) = get_args(kind)
        if part is str:  # one a flag: texts may begin with a dash, and must not swallow what follows
            return {"action": "append", "metavar": "TEXT"}
        return {"type": part, "nargs": "+", "metavar": "N"}
    return {"type": kind, "metavar": {int: "N", float: "X", str: "TEXT"}[kind]}


def _checked(make: Callable[[str], Grammar]) -> Callable[[str], Grammar]:
    """For argparse, which names the flag before what is wrong."""

    def parse(text: str) -> Grammar:
        try:
            return make(text)
        except RequestError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _read_as(make: Callable[[str], Grammar]) -> Callable[[str], Grammar]:
    """The same of what a file holds."""

    def parse(name: str) -> Grammar:
        try:
            return _checked(make)(Path(name).read_text(encoding="utf-8"))
        except OSError as error:
            raise argparse.ArgumentTypeError(f"cannot read {name}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise argparse.ArgumentTypeError(f"{name} is no UTF-8 text") from None

    return parse


def _nonempty(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("a choice must be a text that is not empty")
    return text
