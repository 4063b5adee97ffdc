"""`outpace demo`: a page in the terminal that shows speculation at work and says why it pays, or does not."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from typing import Any

from outpace import LLM, Chunk
from outpace.cli import options
from outpace.cli.columns import Columns
from outpace.cli.status import Status
from outpace.fingerprint import machine, one_line
from outpace.lab.demo.contenders import ENGINE, PLAIN, SPECULATIVE
from outpace.lab.demo.lossless import Difference
from outpace.lab.demo.report import DemoReport, Measured
from outpace.lab.demo.run import PROMPTS, DemoSettings, run_demo
from outpace.lab.intervals.verdict import in_short, times
from outpace.lab.timing.answer import Timing
from outpace.wording import break_even, count_of

SUMMARY = "plain and speculative decoding side by side, measured, with the reason why"
DESCRIPTION = """
Answers a few ordinary questions twice, plainly and with speculation, checks that the answers are the same, and measures
both in one interleaved run on this machine, beside transformers' own generate where it is installed. That takes about
two minutes on two idle cores. Where it would take longer than --time-limit, less is measured; where other programs take
the cores, that is said, since then nothing else is sure.

examples:
  outpace demo
  outpace demo --time-limit 60
  outpace demo --json > demo.json
  outpace demo --k 6 --max-tokens 128
  outpace demo ./my-model --drafter ./my-drafter --prompt "Write a haiku." --quick
"""

WIDTH = 100


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = options.new_parser(subparsers, "demo", SUMMARY, DESCRIPTION)
    options.add_model_flags(parser, model="smollm2", skip=(*ENGINE, "nccl", "sums"))
    group = parser.add_argument_group("demo")
    options.add_fields(group, DemoSettings, skip=("num_rounds", "compare"))
    group.add_argument("--prompt", action="append", metavar="TEXT", help="ask this instead; may be repeated")
    group.add_argument("--quick", action="store_true", help="time only plain and speculative decoding in one format")
    options.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Measures and shows; exit code 1 if speculation changed an answer by more than rounding."""
    options.refuse_ranks(args, "demo")
    status = Status(sys.stderr)
    status.show(f"loading {args.model}")
    settings = DemoSettings(**options.given(args, DemoSettings), compare=not args.quick)
    llm = load(args)
    page = Page(status, silent=args.json)
    page.head(llm)
    report = run_demo(llm, args.prompt or PROMPTS, settings, page)
    if args.json:
        print(json.dumps(report.as_dict()))
    else:
        print(summary(report))
    return 0 if report.verdict.equal_up_to_rounding else 1


def load(args: argparse.Namespace) -> LLM:
    """The model with its drafter, set up as the comparison needs it."""
    return options.load_llm(args, **ENGINE)


class Page:
    """Shows the first pass as it runs. With `silent` only the status line moves."""

    def __init__(self, status: Status, *, silent: bool) -> None:
        self._status = status
        self._silent = silent
        self._columns = Columns(sys.stdout, (PLAIN, SPECULATIVE))

    def head(self, llm: LLM) -> None:
        """What runs on what."""
        self._status.clear()
        if self._silent:
            return
        dtype = str(llm.dtype).removeprefix("torch.")
        print(f"{llm.target.source.name} · {dtype} · {llm.device} · k = {llm.config.k}")
        print(one_line(machine()))

    def begin(self, prompt: str, place: str) -> None:
        """An answer is shown as it comes, so the place is told before it; where none is shown, on the status line."""
        if self._silent:
            self._status.show(f"answering prompt {place}")
            return
        self._status.clear()
        print(f"\n❯ {prompt}   ({place})\n")
        self._columns.begin()

    def chunk(self, who: str, chunk: Chunk) -> None:
        if not self._silent:
            self._columns.add(who, chunk.text)

    def end(self, who: str, timing: Timing) -> None:
        """No speed: an answer that was seen once, while it was shown, is no measurement."""
        if not self._silent:
            drafted = f" · accept length {timing.accept_length:.2f}" if who == SPECULATIVE else ""
            self._columns.close(who, f"{count_of(len(timing.token_ids), 'token')}{drafted}")

    def progress(self, text: str) -> None:
        self._status.show(text)

    def warn(self, text: str) -> None:
        self._status.clear()
        print(f"! {text}", file=sys.stderr, flush=True)


def summary(report: DemoReport) -> str:
    """The table, the verdict and the reason."""
    speedup = report.speedup
    lines = ["", *(f"! {warning}" for warning in report.warnings())]
    lines += [f"Measured interleaved, {report.seconds:.0f} s in all:", ""]
    lines += [_row(measured, report.plain.tok_s) for measured in report.measured]
    lines += ["", f"  speedup        {times(speedup)} over the fastest plain decoding: {in_short(speedup)}"]
    lines += [f"  accept length  {report.balance.accept_length:.2f} tokens a cycle, of {report.k + 1} at most"]
    lines += [f"  break-even     {break_even(report.balance.break_even)}", f"  lossless:      {lossless(report)}", ""]
    return "\n".join([*lines, textwrap.fill(report.why(), WIDTH)])


def lossless(report: DemoReport) -> str:
    """`yes`, `up to rounding` or `NO`: a line, and one more for each answer that parts from plain decoding's."""
    verdict = report.verdict
    equal = f"{verdict.num_equal} of {count_of(verdict.num_prompts, 'answer')} token for token"
    if verdict.lossless:
        return f"yes, {equal}"
    if verdict.equal_up_to_rounding:
        first = f"up to rounding, {equal}; the others part where two logits are within {verdict.largest_gap:.3g}"
    else:
        first = f"NO, {equal}; speculation changed the others"
    rounding = f"plain and verify logits differ by up to {verdict.max_logit_difference:.3g}"
    return "\n".join([first, *(f"    {_parting(difference)}; {rounding}" for difference in verdict.differences)])


def _parting(difference: Difference) -> str:
    place = f"answer {difference.prompt + 1}, token {difference.position + 1}"
    if difference.gap is None:
        return f"{place}: one of the two ends"
    return f"{place}: plain's logits of the two choices lie {difference.gap:.3g} apart"


def _row(measured: Measured, plain_tok_s: float) -> str:
    """Its speed, that over plain decoding's, and how far rounds lie apart."""
    name, spread = f"{measured.kind} {measured.dtype}".strip(), "one round"
    if measured.num_rounds > 1:
        spread = "{:.1f} … {:.1f} by round".format(*measured.range_tok_s)
    return f"  {name:28} {measured.tok_s:7.1f} tok/s   {measured.tok_s / plain_tok_s:5.2f}×   {spread}"
