"""`outpace breakeven`: whether speculation pays, by arithmetic on figures that somebody measured. It needs no torch."""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

from outpace.cli import heat
from outpace.cli.options import add_json_flag, new_parser
from outpace.errors import ConfigError
from outpace.lab.breakeven.balance import Balance
from outpace.lab.breakeven.best_k import best
from outpace.lab.breakeven.cost_rows import CostRows, read_cost_rows
from outpace.lab.breakeven.given import Figures
from outpace.lab.breakeven.report import BreakevenReport, Reach, report
from outpace.lab.intervals.verdict import by_given_figures
from outpace.wording import every_cycle_pays, reason

SUMMARY = "whether speculation pays, by arithmetic on figures that you give"
DESCRIPTION = """
Says from a few measured times whether speculation pays: the accept length that it takes to break even and to reach a
speed, how long a verify may take, and with an acceptance curve which k is best. All figures are those of one stream,
at the same batch and context.

examples:
  outpace breakeven --decode-ms 12.1 --verify-ms 29.3 --accept-length 2.0
  outpace breakeven --decode-ms 12.1 --verify-ms 29.3 --draft-ms 0.6 --other-ms 0.3 --accept-length 2.0 --wish-tok-s 120
  outpace breakeven --decode-ms 4.1 --verify-ms 4.3 --draft-ms 1.2 --acceptance 0.8,0.7,0.6 --verify-ms-at 1=4.2,3=4.3
  outpace breakeven --costs costs.json --acceptance 0.8,0.7,0.6 --json
"""

WIDTH = 100


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = new_parser(subparsers, "breakeven", SUMMARY, DESCRIPTION)
    times = parser.add_argument_group("times in milliseconds")
    times.add_argument("--decode-ms", type=float, metavar="X", help="one plain decode step")
    times.add_argument("--verify-ms", type=float, metavar="X", help="one verify")
    times.add_argument("--draft-ms", type=float, metavar="X", default=0.0, help="all drafts of a cycle (default 0)")
    times.add_argument("--other-ms", type=float, metavar="X", default=0.0, help="the rest of a cycle (default 0)")
    times.add_argument("--verify-ms-at", type=points, metavar="K=X,…", help="verify by k; between, straight lines")
    times.add_argument("--draft-ms-at", type=points, metavar="K=X,…", help="drafts of a cycle by k, likewise")
    times.add_argument("--costs", type=Path, metavar="FILE", help="a cost table as JSON, as an engine describes it")
    group = parser.add_argument_group("acceptance")
    group.add_argument(
        "--accept-length", type=float, metavar="X", help="tokens a cycle emits, the bonus token included"
    )
    group.add_argument(
        "--acceptance",
        type=numbers,
        metavar="X,…",
        default=(),
        help="how often the draft at each place stands, given that those before it did",
    )
    group.add_argument(
        "--k",
        type=int,
        metavar="N",
        help="drafts a cycle that the times are for, of a cost table the most; leaving it out takes the places of "
        "--acceptance",
    )
    group.add_argument("--wish-tok-s", type=float, metavar="X", help="a speed to reach")
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Computes and prints."""
    figures = Figures(
        decode_ms=args.decode_ms,
        verify_ms=args.verify_ms,
        draft_ms=args.draft_ms,
        other_ms=args.other_ms,
        accept_length=args.accept_length,
        k=_checked_k(args.k),
        wish_tok_s=args.wish_tok_s,
        acceptance=args.acceptance,
        verify_ms_at=args.verify_ms_at,
        draft_ms_at=args.draft_ms_at,
        costs=None if args.costs is None else _costs(args.costs),
    )
    found = report(figures)
    print(json.dumps(found.as_dict()) if args.json else "\n".join(lines(found)))
    return 0


def numbers(text: str) -> tuple[float, ...]:
    """ "0.8,0.7" as numbers."""
    return tuple(float(part) for part in text.split(","))


def points(text: str) -> dict[int, float]:
    """ "1=20,3=29.3" as {1: 20.0, 3: 29.3}."""
    return {int(k): float(ms) for k, ms in (part.split("=") for part in text.split(","))}


def _checked_k(k: int | None) -> int | None:
    if k is not None and not 1 <= k <= 15:
        raise ConfigError(f"k is {k}; it must lie in 1 … 15")
    return k


def _costs(path: Path) -> CostRows:
    try:
        return read_cost_rows(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}; name a JSON file") from error


def lines(found: BreakevenReport) -> list[str]:
    """The page."""
    parts = []
    if found.balance is not None:
        parts += [_verdict(found.balance), _table(found.balance), _speeds(found)]
    if found.choices:
        parts.append(_by_k(found))
    parts += [heat.lines(each) for each in found.heats]
    return "\n\n".join("\n".join(part) for part in parts).splitlines()


def _verdict(balance: Balance) -> list[str]:
    return [
        f"{by_given_figures(balance.speedup)}: {balance.tok_s:.1f} tok/s against {balance.plain_tok_s:.1f} plain, "
        f"{balance.speedup:.2f}×.",
        f"A cycle costs {balance.break_even:.2f} plain steps{_must_bring(balance)}; it brings "
        f"{balance.accept_length:.2f}.",
    ]


def _must_bring(balance: Balance) -> str:
    if every_cycle_pays(balance.break_even):
        return " and brings one token at least, so every cycle pays"
    return f", so it must bring {balance.break_even:.2f} tokens to break even"


def _table(balance: Balance) -> list[str]:
    parts = f"verify {1e3 * balance.verify_s:.2f}, draft {1e3 * balance.draft_s:.2f}, other {1e3 * balance.rest_s:.2f}"
    verify_ms = 1e3 * balance.verify_s_for(balance.plain_tok_s)
    always = "   every cycle pays" if every_cycle_pays(balance.break_even) else ""
    allowed = f"{verify_ms:.2f} ms" if verify_ms > 0 else "not at any time: draft and other alone take longer"
    return [
        f"  plain                     {balance.plain_tok_s:7.1f} tok/s   a step of {1e3 * balance.step_s:.2f} ms",
        f"  speculative               {balance.tok_s:7.1f} tok/s   a cycle of {1e3 * balance.cycle_s:.2f} ms: {parts}",
        f"  accept length             {balance.accept_length:7.2f}",
        f"  break-even accept length  {balance.break_even:7.2f}{always}",
        f"  break-even verify         {allowed}, at this accept length",
    ]


def _speeds(found: BreakevenReport) -> list[str]:
    assert found.balance is not None
    return [
        "  to reach              accept length, cycle as it is   or verify, accept length as it is",
        *(_speed(reach, found.balance, found.wish_tok_s) for reach in found.reaches),
    ]


def _speed(reach: Reach, balance: Balance, wish_tok_s: float | None) -> str:
    name = " (wish)" if reach.tok_s == wish_tok_s else " (plain)" if reach.tok_s == balance.plain_tok_s else ""
    length = f"{reach.accept_length + 1e-9:.2f}"  # 4.395 is 4.40, though binary fractions fall a little short of it
    if not reach.possible:
        assert balance.k is not None
        length += f": above the {balance.k + 1} of k {balance.k}"
    verify = f"{reach.verify_ms:.2f} ms" if reach.verify_ms > 0 else "not at any"
    return f"  {reach.tok_s:7.1f} tok/s{name:8} {length:<31} {verify}"


def _by_k(found: BreakevenReport) -> list[str]:
    fastest = best(found.choices).k
    rows = [
        f"  {choice.k:>2}   {choice.accept_length:6.2f}          {choice.cycle_ms:7.2f}    {choice.tok_s:7.1f}   "
        f"{choice.speedup:5.2f}×{'   best' if choice.k == fastest else ''}"
        for choice in found.choices
    ]
    model = textwrap.wrap(f"costs: {found.cost_model}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    return ["   k   accept length   cycle ms     tok/s   × plain", *rows, *model]
