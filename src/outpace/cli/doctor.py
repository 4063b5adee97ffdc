"""`outpace doctor LOG`: what a server's log says about its speculation. Reads SGLang's and vLLM's logs; no torch."""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

from outpace.cli.options import add_json_flag, new_parser
from outpace.lab.doctor.case import choose, subject
from outpace.lab.doctor.client import read_client
from outpace.lab.doctor.collect import runs_of
from outpace.lab.doctor.diagnosis import Diagnosis, diagnose
from outpace.lab.doctor.evidence import Run
from outpace.lab.doctor.finding import Advice, Finding
from outpace.lab.logs.reader import Tally

SUMMARY = "what a server's log says about its speculation: does it pay, what costs it, what to change"
DESCRIPTION = """
Reads the log of an SGLang or vLLM server and says whether speculation pays, which part of the cycle costs it, whether
the figures explain each other, whether settings took effect, what to change with what gain, and what cannot be known
from what was given. Every finding names the lines that it rests on.

examples:
  outpace doctor server.log
  outpace doctor eagle3.log --baseline plain.log --client bench.json
  outpace doctor eagle3.log --client bench.json --client-run eagle3_tok_s --client-baseline plain_tok_s
  outpace doctor eagle3.log --setting attention_backend --json

A client's file is one JSON object; keys that end in tok_s hold the speeds of its runs:
  {"baseline_tok_s": [82.7, 82.4], "eagle3_tok_s": [60.2, 59.4]}
"""

WIDTH = 100


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = new_parser(subparsers, "doctor", SUMMARY, DESCRIPTION)
    parser.add_argument("log", type=Path, metavar="LOG", help="a server's log")
    parser.add_argument(
        "--baseline", type=Path, metavar="LOG", help="the log of plain decoding, or of a run with other settings"
    )
    parser.add_argument("--client", type=Path, metavar="FILE", help="what a client measured, as JSON")
    parser.add_argument("--client-run", metavar="LABEL", help="which of its keys belongs to the log")
    parser.add_argument("--client-baseline", metavar="LABEL", help="which of its keys is plain decoding")
    parser.add_argument(
        "--setting", action="append", default=[], metavar="NAME", help="was this setting applied? may be repeated"
    )
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Reads, judges, prints."""
    found = examine(args)
    print(json.dumps(found.as_dict()) if args.json else "\n".join(lines(found)))
    return 0


def examine(args: argparse.Namespace) -> Diagnosis:
    """The diagnosis of what the options name.

    Raises:
        ConfigError: a file cannot be read, or it is not clear which of a client's figures are meant.
    """
    read: dict[str, Tally] = {}
    runs = _runs(args.log, read)
    baseline = [] if args.baseline is None else _runs(args.baseline, read)
    client = None
    if args.client is not None:
        client = read_client(args.client, subject(runs), args.client_run, args.client_baseline)
    return diagnose(choose(runs, baseline, client), read, args.setting)


def _runs(path: Path, read: dict[str, Tally]) -> list[Run]:
    runs, tally = runs_of(path)
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
    sources = ", ".join(map(str, finding.evidence))
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
    shown = [f"Read {name}: {tally.records:,} records; left unread: {unread or 'nothing'}."]
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
