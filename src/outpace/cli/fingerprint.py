"""`outpace fingerprint`: what a figure taken here depends on; `--diff A B`: what changed between two of them."""

from __future__ import annotations

import argparse
import asyncio
import json
import textwrap
from pathlib import Path
from typing import Any

from outpace.cli.options import add_json_flag, api_key, new_parser
from outpace.errors import ConfigError
from outpace.fingerprint import machine
from outpace.fingerprint.diff import Change, Difference, alike, compare
from outpace.fingerprint.kept import read
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.bench.server_facts import ask_server
from outpace.wording import count_of

SUMMARY = "machine, driver, environment, versions, settings: what a figure depends on, and what changed between two"
DESCRIPTION = """
Says everything that may move a figure: GPUs with clocks, throttle reasons, power, temperature, PCIe and NVLink, the
variables of NCCL, CUDA, torch and threads as each process has them, versions and commit, and a server's resolved
settings. Every result file of bench, compare, demo and the benchmarks holds one; --diff takes any two of them.

examples:
  outpace fingerprint
  outpace fingerprint --json > monday.json
  outpace fingerprint --url http://localhost:30000 --pid 4711
  outpace fingerprint --diff monday.json tuesday.json

Of other processes only variables that begin with NCCL_, CUDA_, TORCH_, OMP_ and the like are read, and no keys.
"""
WIDTH = 100
MOST_SHOWN = 30


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = new_parser(subparsers, "fingerprint", SUMMARY, DESCRIPTION)
    parser.add_argument("--diff", nargs=2, type=Path, metavar=("A", "B"), help="two files that hold a fingerprint")
    parser.add_argument("--url", help="a server whose resolved settings belong to it")
    parser.add_argument(
        "--pid",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="a process whose environment belongs to it, with all that it started; may be repeated",
    )
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Takes one, or compares two."""
    if args.diff is not None:
        if args.url is not None or args.pid:
            raise ConfigError("--diff compares two files, and takes no fingerprint of --url or --pid: leave these out")
        found = compare(*(read(path) for path in args.diff))
        print(json.dumps(found.as_dict()) if args.json else "\n".join(diff_lines(found)))
        return 0
    settings, pids = (None, []) if args.url is None else asyncio.run(_server(args.url))
    facts = machine([*args.pid, *pids]) | ({} if settings is None else {"settings": settings})
    print(json.dumps(facts) if args.json else "\n".join(lines(facts)))
    return 0


async def _server(url: str) -> tuple[dict[str, Any], list[int]]:
    """Its settings, and the process of its engine if it is ours and runs here."""
    endpoint = Endpoint(url, api_key=api_key())
    try:
        facts = await ask_server(endpoint, None)
        pid = (await endpoint.get_json("/v1/outpace/state")).get("engine_pid") if facts.engine == "outpace" else None
    finally:
        await endpoint.close()
    known = {"server_engine": facts.engine, "server_version": facts.version, "server_max_context": facts.max_context}
    return {**facts.settings, **known}, [pid] if isinstance(pid, int) and endpoint.is_local else []


def lines(facts: dict[str, Any]) -> list[str]:
    """The page of one."""
    page = [f"{facts['cpu']}, {count_of(facts['cores'], 'core')}, {facts['memory_gib']} GiB, load {facts['load_1min']}"]
    page += _facts(
        facts, ("instructions", "uptime_s", "os", "python", "torch", "cuda", "cuda_driver", "nccl", "triton")
    )
    page += _facts(facts, ("threads", "outpace", "commit", "taken_at"))
    if not facts["gpus"]:
        page.append("no GPU that nvidia-smi tells of")
    page += [*_gpus(facts["gpus"]), *_topology(facts.get("topology"))]
    page += [f"{gpu:6}NVLink: {told}" for gpu, told in facts.get("nvlink", {}).items()]
    page += ["", "environment of this process", *_variables(facts["environment"])]
    page += _processes(facts["processes"])
    if "settings" in facts:
        page += ["", "the server's settings", *_variables(facts["settings"])]
    return page


def _processes(processes: list[dict[str, Any]]) -> list[str]:
    """Those with one environment together: the ranks of a server have the same, and a machine has many processes."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for process in processes:
        alike.setdefault(json.dumps(process.get("environment", process)), []).append(process)
    page = []
    for found in alike.values():
        first = found[0]
        if "unknown" in first:
            page.append(f"environment of process {first['pid']}: unknown, {first['unknown']}")
        elif len(found) == 1:
            page.append(f"environment of process {first['pid']}, {first['name']}, as it was started")
        else:
            named = ", ".join(f"{process['pid']} {process['name']}" for process in found)
            page += _wrapped(f"environment of {len(found)} processes, as they were started: {named}", 0)
        page += _variables(first.get("environment"))
    return page


def _gpus(gpus: list[dict[str, Any]]) -> list[str]:
    """What all share once, then what each has for itself."""
    shared = (
        {name: value for name, value in gpus[0].items() if all(gpu.get(name) == value for gpu in gpus)} if gpus else {}
    )
    page = []
    if shared:
        page += ["", f"{len(gpus)} × {shared['name']}" if "name" in shared else f"{len(gpus)} GPUs, alike in"]
        page += _wrapped(" · ".join(f"{name} {_text(value)}" for name, value in shared.items() if name != "name"), 2)
    for place, gpu in enumerate(gpus):
        own = [f"{name} {_text(value)}" for name, value in gpu.items() if name not in shared]
        page += _wrapped(f"GPU {place}: {' · '.join(own)}", 2) if own else []
    return page


def _topology(topology: dict[str, Any] | None) -> list[str]:
    if not topology:
        return []
    width = max(map(len, topology["devices"])) + 2
    page = ["", " " * 6 + "".join(f"{name:>{width}}" for name in topology["devices"])]
    for gpu, cells in topology["links"].items():
        row = "".join(f"{cell:>{width}}" for cell in cells.split())
        page.append(f"{gpu:6}{row}   near cores {topology['near_cores'].get(gpu, 'not told')}")
    return page


def diff_lines(found: Difference) -> list[str]:
    """The page of two."""
    page = [f"A  {found.a}", f"B  {found.b}", ""]
    if found.causes:
        page.append("What changed, the likeliest cause of another speed first")
        page += [line for change, count in alike(found.causes) for line in _change(change, count, why=True)]
    else:
        page.append("Nothing changed that would explain another speed.")
    if found.noise:
        page += ["", "Changed only as it always does"]
        page += [line for change, count in alike(found.noise) for line in _change(change, count, why=False)]
    for name, fields in (("A", found.only_in_a), ("B", found.only_in_b)):
        if fields:
            more = f" and {len(fields) - MOST_SHOWN} more" if len(fields) > MOST_SHOWN else ""
            page += ["", f"Recorded in {name} alone, so whether it changed is not known"]
            page += _wrapped(", ".join(fields[:MOST_SHOWN]) + more, 2)
    return [*page, "", f"{found.num_same} fields are the same."]


def _change(change: Change, count: int, *, why: bool) -> list[str]:
    where = f"{change.field} and {count - 1} more alike" if count > 1 else change.field
    reason = f"  ({change.why})" if why else ""
    return _wrapped(f"{where}: {_text(change.a)} → {_text(change.b)}{reason}", 2)


def _facts(facts: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    return _wrapped(" · ".join(f"{name} {_text(facts[name])}" for name in names if facts.get(name) is not None), 2)


def _variables(values: dict[str, Any] | None) -> list[str]:
    if values is None:
        return []
    return [line for name, value in values.items() for line in _wrapped(f"{name} = {_text(value)}", 2)] or [
        "  none set"
    ]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
