"""`outpace compare A B`: is B faster than A, and how sure is that?"""

from __future__ import annotations

import argparse
import asyncio
import sys
import textwrap
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from outpace.cli import options
from outpace.cli.exit_codes import INTERRUPTED
from outpace.cli.status import Status
from outpace.cli.subjects import checked
from outpace.fingerprint import machine, one_line
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.bench.run import Tokens
from outpace.lab.bench.settings import Asking
from outpace.lab.bench.subject import Subject, running
from outpace.lab.paired.blocks import ROLES, counted
from outpace.lab.paired.record import CompareRecord, Side
from outpace.lab.paired.trial import Comparing, Contender, compare
from outpace.lab.paired.verdict import Ratio, Verdict
from outpace.lab.workload.token_counter import read_tokenizer
from outpace.lab.written import to_csv, to_json
from outpace.wording import count_of

SUMMARY = "two servers, settings or commits, interleaved: faster, slower, equivalent, or not known yet"
DESCRIPTION = """
Asks two servers the same prompts in turns, forwards and then backwards, so that drift of the machine cancels, with
A once more under another name as a control. Says whether B is faster, slower or equivalent within the margin, with
the ratio's interval; or that it is inconclusive, and how many more blocks would settle it.

A and B are URLs, or models to serve here; options of `outpace serve` stand behind a model, in quotes, and a commit of
this repository before it. Two models are loaded at the same time.

The exit code is 0 whatever the verdict, 1 if B is slower and --fail-if-slower was given, 2 if something was refused.
Ctrl-C ends it with the blocks so far, said to be cut short, and the exit code 130.

examples:
  outpace compare http://localhost:8000 http://localhost:8001
  outpace compare "smollm2 --drafter none" smollm2 --max-tokens 64
  outpace compare "smollm2 --k 2" "smollm2 --k 4" --measure decode --margin 0.03
  outpace compare "@main smollm2" smollm2 --fail-if-slower --json
  outpace compare "@1a2b3c4 smollm2" "@5d6e7f8 smollm2" --num-blocks 12 --max-tokens 64
"""
WIDTH = 100
SLOWER = 1


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = options.new_parser(subparsers, "compare", SUMMARY, DESCRIPTION)
    parser.add_argument(
        "a", metavar="A", help="what B is held against: a URL, or a model and options of outpace serve, quoted"
    )
    parser.add_argument("b", metavar="B", help="what is judged: the same")
    options.add_fields(parser.add_argument_group("how"), Comparing)
    options.add_fields(parser.add_argument_group("what is asked"), Asking, skip=("input_tokens",))
    parser.add_argument(
        "--fail-if-slower", action="store_true", help="exit code 1 if B is slower; an inconclusive comparison is 0"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a line for each run there")
    options.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Measures and judges."""
    options.check_writable(args.csv)
    record = measured(args.a, args.b, args)
    print(to_json(record) if args.json else "\n".join(lines(record)))
    if args.csv is not None:
        options.write(args.csv, to_csv(record.rows()))
    if record.cut_short:
        return INTERRUPTED
    return SLOWER if args.fail_if_slower and record.verdict.kind == "slower" else 0


def measured(named_a: str, named_b: str, args: argparse.Namespace) -> CompareRecord:
    """Starts what has to be started and compares.

    Args:
        named_a, named_b: the two, as they are named on the command line.
        args: the options of `Comparing` and `Asking`.

    Raises:
        OutpaceError: one cannot be measured; the message says why.
    """
    asking, comparing = Asking(**options.given(args, Asking)), Comparing(**options.given(args, Comparing))
    subjects = [checked(each) for each in (named_a, named_b)]
    tokens = None if asking.tokenizer is None else read_tokenizer(asking.tokenizer)
    asyncio.run(_reach([subject.url for subject in subjects if subject.url is not None]))
    status = Status(sys.stderr)
    with ExitStack() as stack:
        urls = []
        for name, subject in zip("AB", subjects, strict=True):
            if subject.model is not None:
                status.show(f"starting a server for {name}, {subject.label}")
            urls.append(stack.enter_context(running(subject)))
        record = asyncio.run(_compare(urls, subjects, asking, comparing, tokens, status))
    status.clear()
    return record


async def _reach(urls: Sequence[str]) -> None:
    """That servers which run already do, before one is started here beside them."""
    for url in urls:
        endpoint = Endpoint(url, api_key=options.api_key())
        try:
            await endpoint.get("/v1/models")
        finally:
            await endpoint.close()


async def _compare(
    urls: list[str],
    subjects: Sequence[Subject],
    asking: Asking,
    comparing: Comparing,
    tokens: Tokens | None,
    status: Status,
) -> CompareRecord:
    a, b = (
        Contender(subject.label, Endpoint(url, api_key=options.api_key()), subject.commit)
        for subject, url in zip(subjects, urls, strict=True)
    )
    try:
        return await compare(a, b, asking, comparing, tokens=tokens, client=machine, progress=status.show)
    finally:
        await a.endpoint.close()
        await b.endpoint.close()


def lines(record: CompareRecord) -> list[str]:
    """The page: the verdict, the ratio and the control, each contender's speed, what limits it all."""
    verdict = record.verdict
    page = textwrap.wrap(sentence(verdict), WIDTH)
    page += ["", *(f"  {name}  {_side(side)}" for name, side in (("A", record.a), ("B", record.b))), ""]
    page += [f"  {'':24}{'ratio':>8}   interval"]
    page += [_ratio("B ÷ A", verdict.ratio), _ratio("A again ÷ A (control)", verdict.control), ""]
    good = counted(record.blocks)
    for role in ROLES:
        lengths = [r.accept_length for block in good for r in block.runs if r.role == role and r.accept_length]
        if (speed := record.tok_s(role)) is not None:
            accept = f", accept length {median(lengths):.2f}" if lengths else ""
            page.append(f"  {role:3} {speed:8.2f} tok/s{accept}")
    count = f"{count_of(verdict.num_blocks, 'block')} of six runs counted"
    page += ["", f"  {count}" + (f", {verdict.num_excluded} left out" if verdict.num_excluded else "")]
    page += [f"    block {block.index + 1}: {block.excluded}" for block in record.blocks if block.excluded][:5]
    for note in record.notes:
        page += textwrap.wrap(f"! {note}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    return [*page, f"  client: {one_line(record.client)}"]


def _side(side: Side) -> str:
    """As it was named, and the commit that was run."""
    return side.label if side.commit is None else f"{side.label}   (commit {side.commit[:12]})"


def sentence(verdict: Verdict) -> str:
    """The verdict in words."""
    if verdict.kind == "inconclusive":
        return f"Inconclusive: {'; '.join(verdict.reasons)}."
    assert verdict.ratio is not None
    if verdict.kind == "equivalent":
        return f"Equivalent: B is A's speed within {verdict.margin:.1%}, with 95% confidence."
    return f"B is {verdict.kind} than A by {abs(verdict.ratio.value - 1.0):.1%}, with 95% confidence."


def _ratio(name: str, found: Ratio | None) -> str:
    if found is None:
        return f"  {name:24}{'–':>8}"
    if found.low is None or found.high is None:
        return f"  {name:24}{found.value:8.4f}   too few blocks for one"
    return f"  {name:24}{found.value:8.4f}   {found.low:.4f} … {found.high:.4f} ({found.confidence:.0%})"
