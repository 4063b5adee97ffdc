"""`outpace doctor LOG|URL|MODEL`: does speculation pay, what costs it, what to change. Only a model needs torch."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

from outpace.cli.options import MODEL_HELP, add_json_flag, api_key, new_parser
from outpace.cli.status import Status
from outpace.errors import ConfigError
from outpace.fingerprint import machine
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.bench.settings import Asking
from outpace.lab.doctor.case import choose, subject
from outpace.lab.doctor.client import read_client
from outpace.lab.doctor.collect import runs_of
from outpace.lab.doctor.diagnosis import Diagnosis, diagnose
from outpace.lab.doctor.evidence import Run
from outpace.lab.doctor.finding import Advice, Finding
from outpace.lab.doctor.live import Seen, ask, watch
from outpace.lab.logs.reader import Tally
from outpace.wording import count_of

SUMMARY = "a log, a live server or a model: does its speculation pay, what costs it, what to change"
DESCRIPTION = """
Says whether speculation pays, which part of the cycle costs it, whether the figures explain each other, whether
settings took effect, what to change with what gain, and what cannot be known from what was given. Every finding names
what it rests on.

  LOG    of an SGLang or vLLM server
  URL    a live server: ours, SGLang or vLLM; it is only watched, unless --num-prompts has it answer some
  MODEL  runs our engine with the drafter and without, and tries which wiring the drafter was trained for

examples:
  outpace doctor server.log
  outpace doctor eagle3.log --baseline plain.log --client bench.json
  outpace doctor eagle3.log --client bench.json --client-run eagle3_tok_s --client-baseline plain_tok_s
  outpace doctor eagle3.log --setting attention_backend --json
  outpace doctor http://localhost:30000 --seconds 30 --baseline plain.log
  outpace doctor http://localhost:8000 --num-prompts 8
  outpace doctor smollm2
  outpace doctor ./model --drafter ./drafter --aux-boundaries 3 17 30

A client's file is one JSON object; keys that end in tok_s hold the speeds of its runs:
  {"baseline_tok_s": [82.7, 82.4], "eagle3_tok_s": [60.2, 59.4]}
"""

WIDTH = 100
WATCH_S = 5.0
LONGEST_S = 3600.0
OF_LOGS = ("client", "client_run", "client_baseline")
OF_SERVERS = ("seconds",)
OF_MODELS = ("drafter", "aux_boundaries", "k", "dtype", "device")
OF_BOTH = ("num_prompts", "max_tokens", "workload")
OF_RUNS = ("baseline", "setting")


def add_parser(subparsers: Any) -> None:
    """Adds the command's options; none has a default here, so that one which does not belong is noticed."""
    parser = new_parser(subparsers, "doctor", SUMMARY, DESCRIPTION)
    parser.add_argument("target", metavar="LOG|URL|MODEL", help=f"a server's log, a URL, or {MODEL_HELP}")
    logs = parser.add_argument_group("logs")
    logs.add_argument(
        "--baseline", type=Path, metavar="LOG", help="the log of plain decoding, or of a run with other settings"
    )
    logs.add_argument("--client", type=Path, metavar="FILE", help="what a client measured, as JSON")
    logs.add_argument("--client-run", metavar="LABEL", help="which of its keys belongs to the log")
    logs.add_argument("--client-baseline", metavar="LABEL", help="which of its keys is plain decoding")
    logs.add_argument("--setting", action="append", metavar="NAME", help="was this setting applied? may be repeated")
    servers = parser.add_argument_group("servers")
    servers.add_argument("--seconds", type=float, metavar="X", help=f"seconds to watch for (default {WATCH_S:g})")
    models = parser.add_argument_group("models")
    models.add_argument("--drafter", help="an EAGLE-3 drafter; without it the one shipped for the model")
    models.add_argument("--aux-boundaries", type=int, nargs="+", metavar="B", help="taps, instead of the config's")
    models.add_argument("--k", type=int, metavar="N", help="drafts a cycle (default 4)")
    models.add_argument("--dtype", help="float32, bfloat16 or float16; without it what suits the device")
    models.add_argument("--device", help="cpu, cuda or cuda:N; without it the first GPU, else the CPU")
    both = parser.add_argument_group("servers and models")
    both.add_argument("--num-prompts", type=int, metavar="N", help="prompts to ask (a server none, a model 4)")
    both.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer (a server 256, a model 64)")
    both.add_argument("--workload", action="append", metavar="TEXT", help="what to ask, as in outpace bench")
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Reads or measures, judges, prints."""
    found = examine(args)
    print(json.dumps(found.as_dict()) if args.json else "\n".join(lines(found)))
    return 0


def examine(args: argparse.Namespace) -> Diagnosis:
    """The diagnosis of what the options name.

    Raises:
        OutpaceError: something cannot be read, reached or run, an option does not belong to what was named, or it is
            not clear which of a client's figures are meant.
    """
    kind = kind_of(args.target)
    foreign = {
        "a log": (*OF_SERVERS, *OF_MODELS, *OF_BOTH),
        "a server": (*OF_LOGS, *OF_MODELS),
        "a model": (*OF_LOGS, *OF_SERVERS, *OF_RUNS),
    }[kind]
    for name in foreign:
        if getattr(args, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} means nothing for {kind}, and {args.target} is one; leave it out"
            )
    if args.client is None and (args.client_run is not None or args.client_baseline is not None):
        raise ConfigError("--client-run and --client-baseline name keys of a client's file: give it with --client")
    return {"a log": _of_log, "a server": _of_server, "a model": _of_model}[kind](args)


def kind_of(target: str) -> str:
    """ "a log", "a server" or "a model"; a path that does not exist is taken for a log, which then cannot be read."""
    path = Path(target)
    if target.startswith(("http://", "https://")):
        return "a server"
    if path.is_file():
        return "a model" if path.suffix == ".gguf" else "a log"
    if path.is_dir():
        return "a model" if (path / "config.json").is_file() else "a log"
    if path.exists():  # a pipe, such as a shell makes of <(docker logs server)
        return "a log"
    looks_like_a_file = target.startswith((".", "/", "~")) or path.suffix in (".log", ".txt", ".out")
    return "a log" if looks_like_a_file else "a model"


def _of_log(args: argparse.Namespace) -> Diagnosis:
    read: dict[str, Tally] = {}
    runs = _runs(Path(args.target), read)
    baseline = [] if args.baseline is None else _runs(args.baseline, read)
    client = None
    if args.client is not None:
        client = read_client(args.client, subject(runs), args.client_run, args.client_baseline)
    return diagnose(choose(runs, baseline, client), read, args.setting or ())


def _of_server(args: argparse.Namespace) -> Diagnosis:
    read: dict[str, Tally] = {}
    baseline = [] if args.baseline is None else _runs(args.baseline, read)
    seen = asyncio.run(_see(args))
    return diagnose(
        choose([seen.run], baseline, None),
        read,
        args.setting or (),
        found=seen.findings,
        not_known=seen.not_known,
        machine=machine(),
    )


async def _see(args: argparse.Namespace) -> Seen:
    seconds = WATCH_S if args.seconds is None else args.seconds
    if not 0.0 < seconds <= LONGEST_S:
        raise ConfigError(f"--seconds is {seconds:g}; it must lie in 0 … {LONGEST_S:g}")
    if not args.num_prompts and (args.max_tokens is not None or args.workload is not None):
        raise ConfigError("--max-tokens and --workload are of what is asked; say how much with --num-prompts")
    endpoint, status = Endpoint(args.target, api_key=api_key()), Status(sys.stderr)
    try:
        if not args.num_prompts:
            return await watch(endpoint, seconds, status.show)
        given = {"max_tokens": args.max_tokens, "workload": tuple(args.workload or ())}
        asking = Asking(**{name: value for name, value in given.items() if value is not None})
        return await ask(endpoint, asking, args.num_prompts, machine, status.show)
    finally:
        status.clear()
        await endpoint.close()


def _of_model(args: argparse.Namespace) -> Diagnosis:
    module: Any = import_module("outpace.lab.doctor.model")  # it brings torch, which logs and servers do without
    given = {name: getattr(args, name) for name in (*OF_MODELS, *OF_BOTH) if getattr(args, name) is not None}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    status = Status(sys.stderr)
    found: Diagnosis = module.examine(module.Examined(model=args.target, **given), status.show)
    status.clear()
    return found


def _runs(path: Path, read: dict[str, Tally]) -> list[Run]:
    status = Status(sys.stderr)
    runs, tally = runs_of(path, status.show)
    status.clear()
    read[str(path) if path.name in read else path.name] = tally
    return runs


def lines(found: Diagnosis) -> list[str]:
    """The page: the verdict, the findings, what to try, what is not known, and how much was read."""
    page = _wrapped(" ".join(found.verdict), "")
    page += ["", "Findings", *(line for finding in found.findings for line in _finding(finding))]
    if found.advice:
        page += ["", "What to try, fastest first", *(line for each in found.advice for line in _advice(each))]
    if found.unknown:
        page += ["", "What this cannot tell, and what would"]
        for unknown in found.unknown:
            page += _wrapped(f"? {unknown.question}", "  ") + _wrapped(f"→ {unknown.measurement}", "    ")
    return [*page, "", *(line for name, tally in found.read.items() for line in _read(name, tally))]


def _finding(finding: Finding) -> list[str]:
    head = f"  {finding.question + '?':48} {finding.answer}"
    sources = ", ".join(finding.sources)
    basis = f"[{finding.confidence} confidence{'; ' + sources if sources else ''}]"
    return [head, *_wrapped(finding.text, "      "), *_wrapped(basis, "      ")]


def _advice(advice: Advice) -> list[str]:
    gain = f"{advice.over_now - 1.0:+.0%} on now, {advice.over_plain:.2f}× plain"
    return [
        f"  {advice.tok_s:7.1f} tok/s  {advice.action}",
        *_wrapped(f"{gain}; {advice.arithmetic} [{advice.confidence} confidence]", " " * 17),
    ]


def _read(name: str, tally: Tally) -> list[str]:
    unread = ", ".join(f"{count:,} {reason}" for reason, count in tally.unread.items())
    shown = [f"Read {name}: {count_of(tally.records, 'record')}; left unread: {unread or 'nothing'}."]
    return shown + [f"    line {each.line}: {each.text}" for each in tally.examples.get("cut short", [])]


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
