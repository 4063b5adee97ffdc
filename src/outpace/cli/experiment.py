"""`outpace experiment new|run|list|show`: experiments that are kept, with whether their change was applied."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from outpace.cli import options
from outpace.cli.compare import measured, sentence
from outpace.cli.exit_codes import INTERRUPTED
from outpace.cli.status import Status
from outpace.cli.subjects import checked
from outpace.errors import ConfigError, OutpaceError
from outpace.lab.bench.settings import Asking
from outpace.lab.experiments import page
from outpace.lab.experiments.outcome import outcome
from outpace.lab.experiments.record import Experiment
from outpace.lab.experiments.store import Store, now
from outpace.lab.paired.trial import Comparing

SUMMARY = "a hypothesis, a change, was it applied, what came of it: kept in a directory"
DESCRIPTION = """
Keeps experiments in a plain directory of JSON and Markdown, with a page that lists them. `new` writes down what is
expected and what is changed; `run` compares A and B, interleaved, and keeps the record, what was asked of each server
beside what it says that it has, and a verdict. A change that was not applied proves nothing, and it says so; what no
server tells is unknown. Results are never overwritten.

examples:
  outpace experiment new k4 --hypothesis "4 drafts beat 2" --change "k 4" --a "smollm2 --k 2" --b "smollm2 --k 4"
  outpace experiment new fa3 --hypothesis "FA3 decodes faster" --change "attention backend" \\
      --a http://localhost:30000 --b http://localhost:30001 --setting attention_backend=fa3
  outpace experiment run k4 --num-blocks 12 --max-tokens 64
  outpace experiment run fa3 --log-a a.log --log-b b.log
  outpace experiment list
  outpace experiment show k4 --json
"""


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = options.new_parser(subparsers, "experiment", SUMMARY, DESCRIPTION)
    verbs = parser.add_subparsers(dest="verb", metavar="new|run|list|show", required=True)
    new = verbs.add_parser("new", help="write down a hypothesis and a change")
    new.add_argument("name", metavar="NAME", help="small letters, digits and dashes")
    new.add_argument("--hypothesis", required=True, help="what is expected, and why")
    new.add_argument("--change", required=True, help="what is done differently in B, in words")
    new.add_argument("--a", required=True, metavar="A", help="a URL or a model, as outpace compare takes it")
    new.add_argument("--b", required=True, metavar="B", help="the same with the change")
    new.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what the change asks of B's server, to be checked; options in which A and B differ are checked anyway",
    )
    run_parser = verbs.add_parser("run", help="compare A and B, and keep what comes of it")
    run_parser.add_argument("name", metavar="NAME", help="as it was given to new")
    run_parser.add_argument("--log-a", type=Path, metavar="FILE", help="the log of A's server (SGLang's, vLLM's)")
    run_parser.add_argument("--log-b", type=Path, metavar="FILE", help="the log of B's server")
    options.add_fields(run_parser.add_argument_group("how"), Comparing)
    options.add_fields(run_parser.add_argument_group("what is asked"), Asking, skip=("input_tokens",))
    show = verbs.add_parser("show", help="one experiment")
    show.add_argument("name", metavar="NAME", help="as it was given to new")
    for verb in (new, run_parser, show, verbs.add_parser("list", help="all experiments, the latest first")):
        verb.add_argument(
            "--directory", type=Path, default=Path("experiments"), help="where they are kept (default experiments)"
        )
        options.add_json_flag(verb)


def run(args: argparse.Namespace) -> int:
    """One of the four."""
    store = Store(args.directory)
    if args.verb == "list":
        _list(args, store)
        return 0
    experiment = {"new": _new, "run": _run, "show": _show}[args.verb](args, store)
    print(msgspec.json.encode(experiment).decode() if args.json else "\n".join(page.markdown(experiment)))
    cut_short = args.verb == "run" and experiment.outcome is not None and experiment.outcome.cut_short
    return INTERRUPTED if cut_short else 0


def _list(args: argparse.Namespace, store: Store) -> None:
    """Prints what can be read.

    Raises:
        ConfigError: some cannot, once the others are printed.
    """
    kept = store.all()
    found = kept.found
    print(msgspec.json.encode([e for _, e in found]).decode() if args.json else "\n".join(page.index(found)))
    if kept.broken:
        raise ConfigError("; ".join(kept.broken.values()))


def _new(args: argparse.Namespace, store: Store) -> Experiment:
    for side, named in (("--a", args.a), ("--b", args.b)):
        _check(side, named)
    experiment = Experiment(
        name=args.name,
        created_at=now(),
        hypothesis=args.hypothesis,
        change=args.change,
        a=args.a,
        b=args.b,
        settings=dict(map(_setting, args.setting)),
    )
    store.new(experiment)
    return experiment


def _check(side: str, named: str) -> None:
    """Now, since a run may be weeks away.

    Raises:
        ConfigError: it names nothing that could be measured, or something that must not be kept.
    """
    try:
        url = checked(named).url
    except OutpaceError as error:
        raise ConfigError(f"{side} {named!r}: {error}") from error
    if url is not None and urlsplit(url).password is not None:
        raise ConfigError("the URL holds a password, which would be kept; give a key in OPENAI_API_KEY instead")


def _run(args: argparse.Namespace, store: Store) -> Experiment:
    folder, experiment = store.find(args.name)
    store.check_unfinished(folder, experiment)
    for log in (args.log_a, args.log_b):
        if log is not None and not log.is_file():
            raise ConfigError(f"cannot read {log}; name the log of a server")
    record = measured(experiment.a, experiment.b, args)
    store.keep(folder, experiment, record)  # before anything else is read: what was measured is not lost
    status = Status(sys.stderr)
    found = outcome(experiment, record, sentence(record.verdict), args.log_a, args.log_b, status.show)
    status.clear()
    return store.finish(folder, experiment, found)


def _show(args: argparse.Namespace, store: Store) -> Experiment:
    return store.find(args.name)[1]


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError(f"--setting is {text!r}; write NAME=VALUE, the value being what B's server should have")
    return name, value
