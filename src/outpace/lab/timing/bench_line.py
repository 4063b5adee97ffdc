"""What benchmark scripts share: their flags, progress on stderr, and one JSON line with the machine on stdout."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from outpace.engine.devices import DTYPES, enter, resolve_device, resolve_dtype
from outpace.errors import OutpaceError
from outpace.fingerprint import machine
from outpace.lab.shapes.dense import DRAFT_VOCAB, SHAPES

WRONG = 2
"""Exit code, as argparse has it."""


def ints(text: str) -> tuple[int, ...]:
    """ "1,8" as numbers; ascending, each once."""
    return tuple(sorted({int(part) for part in text.split(",")}))


def floats(text: str) -> tuple[float, ...]:
    """ "0.2,0.8" as numbers, in the order given."""
    return tuple(float(part) for part in text.split(","))


def parser(doc: str | None, *, shape: str | None = "llama-8b", rounds: int = 9) -> argparse.ArgumentParser:
    """Flags that every script has.

    Args:
        doc: the script's docstring, shown by --help.
        shape: default of --shape; None leaves it unset.
        rounds: default of --rounds.
    """
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--shape", choices=SHAPES, default=shape, help=f"random weights of this shape (default {shape})")
    made.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto (default auto)")
    made.add_argument("--dtype", choices=(*DTYPES, "auto"), default="auto", help="of the weights (default auto)")
    made.add_argument(
        "--draft-vocab",
        type=int,
        default=DRAFT_VOCAB,
        metavar="N",
        help=f"ids to draft from (default {DRAFT_VOCAB})",
    )
    made.add_argument(
        "--rounds", type=int, default=rounds, metavar="N", help=f"passes over all variants (default {rounds})"
    )
    return made


@dataclass(frozen=True, slots=True)
class Cell:
    """Cycles of k drafts for `num_rows` rows behind `context` tokens each; k = 0 is the plain step."""

    num_rows: int
    context: int
    k: int

    @property
    def plain(self) -> Cell:
        """What it is measured against."""
        return replace(self, k=0)


def cells_of(args: argparse.Namespace) -> list[Cell]:
    """All cells of the flags of `add_grid`, the plain steps among them."""
    return [Cell(rows, context, k) for rows in args.batch for context in args.context for k in (0, *args.k)]


def add_grid(made: argparse.ArgumentParser, *, batch: str = "1,8", k: str = "3,5,7", context: str = "1024") -> None:
    """--batch, --k and --context, each a comma-separated list."""
    made.add_argument("--batch", type=ints, default=ints(batch), metavar="N,…", help=f"rows (default {batch})")
    made.add_argument("--k", type=ints, default=ints(k), metavar="N,…", help=f"drafts a cycle (default {k})")
    made.add_argument(
        "--context", type=ints, default=ints(context), metavar="N,…", help=f"tokens of each row (default {context})"
    )


def place(args: argparse.Namespace) -> tuple[torch.device, torch.dtype]:
    """Where the script's flags say that models lie, and in what format.

    Raises:
        ConfigError: the device is not on this machine.
    """
    device = enter(resolve_device(args.device))
    return device, resolve_dtype(args.dtype, device)


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def run(main: Callable[[], object]) -> None:
    """A script's `main` from the command line: what is wrong with what it was told is a sentence and exit code 2."""
    try:
        main()
    except OutpaceError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(WRONG)


class Line:
    """Times a script from here on and prints its one line.

    Args:
        name: of the benchmark.
        args: what it was told; kept in the line.
    """

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self._head = {"benchmark": name, "settings": vars(args)}
        self._began = time.perf_counter()
        self._machine = machine()  # before the load that the script itself makes

    def print(self, **facts: Any) -> None:
        """The line: name and settings, the script's own facts, seconds and the machine."""
        seconds = round(time.perf_counter() - self._began, 1)
        print(json.dumps({**self._head, **facts, "seconds": seconds, "machine": self._machine}))
