"""`outpace report FILE…`: results as one HTML file that opens anywhere. It needs no torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from outpace.cli.options import new_parser, write
from outpace.errors import ConfigError
from outpace.lab.report.files import read
from outpace.lab.report.page import page

SUMMARY = "results of other commands as one HTML file that opens offline"
DESCRIPTION = """
Puts what bench, compare, profile, breakeven and doctor print with --json into one HTML file: what each result says
in a few sentences, then every result with its drawings, then the machines they were taken on. It needs neither network
nor scripts. Lines of benchmarks/mixture.py are drawn, too.

examples:
  outpace report profile.json -o report.html
  outpace report bench.jsonl compare.json doctor.json breakeven.json -o report.html
"""


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = new_parser(subparsers, "report", SUMMARY, DESCRIPTION)
    parser.add_argument("files", type=Path, metavar="FILE", nargs="+", help="a result as JSON, or several, one a line")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", required=True, help="the HTML file to write")


def run(args: argparse.Namespace) -> int:
    """Reads, draws, writes."""
    whole = page(read(args.files))
    if args.output in args.files:
        raise ConfigError(f"{args.output} is one of the results; name another file to write")
    write(args.output, whole)
    print(f"{args.output}: {len(whole.encode()):,} bytes", file=sys.stderr)
    return 0
