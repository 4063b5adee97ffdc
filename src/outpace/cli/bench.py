"""`outpace bench URL|MODEL`: the speed of a server as its clients see it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from outpace.cli import bench_page, options
from outpace.cli.exit_codes import INTERRUPTED
from outpace.cli.status import Status
from outpace.cli.subjects import checked
from outpace.fingerprint import machine
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.bench.record import BenchRecord
from outpace.lab.bench.run import Tokens, bench
from outpace.lab.bench.settings import Asking, Load
from outpace.lab.bench.subject import running
from outpace.lab.workload.token_counter import read_tokenizer
from outpace.lab.written import to_csv, to_json

SUMMARY = "the speed of any OpenAI-compatible server, as its clients see it"
DESCRIPTION = """
Measures a server that speaks OpenAI's API: ours, SGLang, vLLM or another. Tokens are those that the server counts,
never chunks; what speculation came to is read from its answers and its metrics. A model instead of a URL is served by
`outpace serve` for as long as it is measured; its options may stand behind it, in quotes.

examples:
  outpace bench http://localhost:30000
  outpace bench http://localhost:8000 --workload gsm8k --concurrency 8 --num-prompts 64
  outpace bench http://localhost:8000 --request-rate 2 --max-ttft-ms 500 --max-tpot-ms 30
  outpace bench http://localhost:8000 --input-tokens 4096 --max-tokens 1024 --ignore-eos
  outpace bench "smollm2 --k 0" smollm2 --num-prompts 8 --max-tokens 64 --json > bench.jsonl
  outpace bench http://localhost:8000 --workload my.jsonl --csv requests.csv

A workload file has one JSON value a line: a text, or an object with "prompt", "messages" or "turns". A key for the
server is taken from the environment variable OPENAI_API_KEY. Exit code 1 means that no request went well. Ctrl-C
ends it with the figures so far, said to be cut short, and the exit code 130.
"""


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = options.new_parser(subparsers, "bench", SUMMARY, DESCRIPTION)
    parser.add_argument("target", metavar="URL|MODEL", nargs="+", help="a server, or a model to serve")
    options.add_fields(parser.add_argument_group("what is asked"), Asking)
    options.add_fields(parser.add_argument_group("how much"), Load)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a line for each request there")
    options.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Measures each in turn; a page or a JSON line for each."""
    options.check_writable(args.csv)
    asking, load = Asking(**options.given(args, Asking)), Load(**options.given(args, Load))
    subjects = [checked(named) for named in args.target]
    tokens = None if asking.tokenizer is None else read_tokenizer(asking.tokenizer)
    status = Status(sys.stderr)
    records: list[BenchRecord] = []
    try:
        for subject in subjects:
            if subject.model is not None:
                status.show(f"starting a server for {subject.label}")
            with running(subject) as url:
                record = asyncio.run(_bench(url, asking, load, tokens, status))
            status.clear()
            print(to_json(record) if args.json else "\n".join(bench_page.lines(record)), flush=True)
            records.append(record)
            if record.cut_short:
                return INTERRUPTED
    finally:
        if args.csv is not None and records:
            options.write(args.csv, to_csv(rows(records)))
    return 0 if all(record.figures.num_failed < record.figures.num_requests for record in records) else 1


async def _bench(url: str, asking: Asking, load: Load, tokens: Tokens | None, status: Status) -> BenchRecord:
    endpoint = Endpoint(url, api_key=options.api_key())
    try:
        return await bench(endpoint, asking, load, tokens=tokens, client=machine, progress=status.show, may_be_cut=True)
    finally:
        await endpoint.close()


def rows(records: list[BenchRecord]) -> list[dict[str, Any]]:
    """A row for each request of each server."""
    return [
        {"server": record.server.url, **{name: getattr(request, name) for name in type(request).__slots__}}
        for record in records
        for request in record.requests
    ]
