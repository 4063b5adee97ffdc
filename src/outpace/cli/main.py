"""`outpace COMMAND`: finds the command, runs it, and turns our own errors into one clear line.

Only the module of the command that was asked for is imported, so `outpace --help` needs no torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Protocol

import outpace
from outpace.cli.exit_codes import INTERRUPTED, PIPE_CLOSED, REFUSED
from outpace.cli.parser import Parser
from outpace.errors import OutpaceError
from outpace.streams import to_nowhere

COMMANDS = {
    "demo": "plain and speculative decoding side by side, measured, with the reason why",
    "chat": "talk to a model; speed and accept length after each answer",
    "generate": "answer one prompt and exit",
    "serve": "serve a model over HTTP, as OpenAI's API does",
    "inspect": "what a model or a drafter is, and how it would be wired, without loading weights",
    "bench": "the speed of any OpenAI-compatible server, as its clients see it",
    "compare": "two servers, settings or commits, interleaved: faster, slower, equivalent, or not known yet",
    "experiment": "a hypothesis, a change, was it applied, what came of it: kept in a directory",
    "fingerprint": "machine, driver, environment, versions, settings; what changed between two",
    "profile": "where the time of a cycle goes, until it adds up to what a client sees",
    "report": "results of other commands as one HTML file that opens offline",
    "breakeven": "whether speculation pays, by arithmetic on figures that you give",
    "doctor": "a log, a live server or a model: does its speculation pay, what costs it, what to change",
    "tune-nccl": "settings of NCCL for a model on these GPUs, measured, as a file for serve",
    "train": "train an EAGLE-3 drafter on answers that the target itself writes",
}

EXAMPLES = """\
examples:
  outpace demo                                    see it work on this machine; two minutes on two idle cores
  outpace chat smollm2                            talk to the small default model
  outpace generate smollm2 "What is a prime?"     one answer on stdout, figures on stderr
  outpace serve smollm2                           an OpenAI-compatible server on port 8000
  outpace inspect path/to/drafter --target smollm2
  outpace doctor server.log --client bench.json   why a server's speculation pays, or does not
  outpace doctor smollm2                          ours, run: what it gains, and whether the drafter is wired right
  outpace fingerprint --diff monday.json now.json what changed, the likeliest cause first
  outpace bench http://localhost:30000            tok/s, latencies and acceptance of any server
  outpace COMMAND --help                          every option of a command

Answers and JSON go to stdout, progress and figures to stderr. Exit code 2 means that something was refused; the line
on stderr names the value, the limit and the remedy.
"""


class Command(Protocol):
    """What each module of this folder offers, `main` and `options` apart."""

    def add_parser(self, subparsers: Any) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0, or what `run` says, or 2 for an `OutpaceError`."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = next((word for word in words if not word.startswith("-")), None)
    try:
        command = _load(name) if name in COMMANDS else None
        args = build_parser(name, command).parse_args(words)
        assert command is not None, "argparse refuses an unknown command"
        return command.run(args)
    except OutpaceError as error:
        print(f"outpace: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be closed
            print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away. Python would complain once more when it flushes at exit.
        to_nowhere(sys.stdout.fileno())
        return PIPE_CLOSED


def build_parser(name: str | None, command: Command | None) -> argparse.ArgumentParser:
    """The parser, with the options of the chosen command and one line for each of the others."""
    parser = Parser(
        prog="outpace",
        description=outpace.__doc__.partition("\n")[0] if outpace.__doc__ else None,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"outpace {outpace.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for other, summary in COMMANDS.items():
        if other == name and command is not None:
            command.add_parser(subparsers)
        else:
            subparsers.add_parser(other, help=summary)
    return parser


def module_of(name: str) -> str:
    """Where a command is written."""
    return f"outpace.cli.{name.replace('-', '_')}"


def _load(name: str | None) -> Command:
    module: Any = import_module(module_of(str(name)))
    loaded: Command = module
    return loaded


if __name__ == "__main__":
    sys.exit(main())
