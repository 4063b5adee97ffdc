"""A server under many clients for minutes: some leave, some send nonsense, and its engine is killed twice.

    python benchmarks/soak.py                             # 200 clients, 10 minutes, the tests' tiny random model
    python benchmarks/soak.py --seconds 60 --clients 50
    python benchmarks/soak.py --model smollm2 --page-size 16 --num-pages 60

It ends with code 1 unless: every answer that was given whole is, to the letter, the one that the same request got alone
before; no request is stuck; nothing is refused but nonsense, and nothing fails but what was in an engine as it was
killed; answers gave their KV pages back again and again, and started over; at the end nothing runs, waits or holds a
page; and server and engine hold at most 5% more memory than after warming up. It prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outpace.fingerprint import machine
from soaking.clients import Soak
from soaking.process import Server

ROOT = Path(__file__).parents[1]


def tiny(folder: Path) -> tuple[str, str]:
    """The tests' random model and drafter, on disk."""
    sys.path.append(str(ROOT / "tests"))
    from server.models import make_drafter, make_model

    model = make_model(folder / "model")
    return str(model), str(make_drafter(model, folder / "drafter"))


async def soak(model: str, drafter: str, args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The server from its start to its end."""
    pages = ("--num-pages", str(args.num_pages), "--page-size", str(args.page_size))
    server = await Server.start(model, ("--drafter", drafter, *pages))
    try:
        running = Soak(server, f"http://127.0.0.1:{(await server.event('listening'))['port']}", args)
        await running.run()
        found = running.verdict()
    finally:
        code = await server.end()
    if code:
        running.fail(f"the server ended with exit code {code}")
    return found, running.failures


def main(argv: Sequence[str] | None = None) -> int:
    """Runs it; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="what to serve, or tiny (default)")
    parser.add_argument("--drafter", default="auto", help="its drafter (default auto)")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (default 600)")
    parser.add_argument("--clients", type=int, default=200, help="how many at once (default 200)")
    parser.add_argument(
        "--num-pages", type=int, default=200, help="KV pages; few make answers give theirs back (default 200)"
    )
    parser.add_argument("--page-size", type=int, default=4, help="tokens of a page (default 4)")
    parser.add_argument("--seed", type=int, default=0, help="of what clients do (default 0)")
    args = parser.parse_args(argv)
    at_start, began = machine(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        model, drafter = tiny(Path(folder)) if args.model == "tiny" else (args.model, args.drafter)
        found, failures = asyncio.run(soak(model, drafter, args))
    seconds = round(time.perf_counter() - began, 1)
    line = {"benchmark": "soak", "settings": vars(args), **found, "failures": failures, "seconds": seconds}
    print(json.dumps(line | {"machine": at_start}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
