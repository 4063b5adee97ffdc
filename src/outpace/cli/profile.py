"""`outpace profile MODEL`: where the time of a cycle goes, until it adds up to what a client sees."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from outpace import EngineConfig
from outpace.cli import options, profile_page
from outpace.cli.status import Status
from outpace.engine.devices import enter, resolve_device, resolve_dtype
from outpace.errors import ConfigError
from outpace.fingerprint import machine
from outpace.lab.demo.run import PROMPTS
from outpace.lab.profile import run as profiling
from outpace.lab.profile.contenders import write_trace
from outpace.lab.profile.kineto import NUM_TRACED
from outpace.lab.profile.run import ENGINE, ProfileSettings
from outpace.lab.shapes.dense import SHAPES, random_llm
from outpace.lab.written import to_json
from outpace.wording import count_of

DEFAULT_MODEL = "smollm2"
NUM_PROMPTS = 2
MEMORY_FRACTION = 0.3
"""Of what is free, for pages: what a device can copy is measured beside them, in gigabytes."""
SUMMARY = "where the time of a cycle goes, until it adds up to what a client sees"
DESCRIPTION = """
Takes the cycles of one stream apart: client tok/s = accept length ÷ cycle, cycle = draft + verify + accept + gaps, and
each of these by part, beside the least that reading its bytes takes. What is left unexplained is printed. Speeds are
measured without any profiler, in rounds that also run plain decoding and, on a GPU, the same without graphs, so that
launch cost is a row of the table; what measuring cost stands below it.

examples:
  outpace profile smollm2
  outpace profile path/to/target --drafter path/to/drafter --k 3 --json > profile.json
  outpace profile --shape llama-8b --context 4096 --k 3
  outpace profile smollm2 --trace trace.json

With --shape the weights are random and acceptance is simulated: times are those of the shape, texts mean nothing.
"""


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = options.new_parser(subparsers, "profile", SUMMARY, DESCRIPTION)
    options.add_model_flags(parser, model=DEFAULT_MODEL, skip=ENGINE)
    group = parser.add_argument_group("what is measured")
    options.add_fields(group, ProfileSettings)
    group.add_argument(
        "--prompt",
        action="append",
        metavar="TEXT",
        help=f"a user message; may be repeated (default {NUM_PROMPTS} of the demo's)",
    )
    group.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead of a model")
    group.add_argument("--context", type=int, metavar="N", help="with --shape: tokens of the prompt (default 1024)")
    group.add_argument("--trace", type=Path, metavar="FILE", help="also write a Chrome trace of some cycles there")
    options.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Measures and prints."""
    settings = ProfileSettings(**options.given(args, ProfileSettings))
    options.check_writable(args.trace)
    status = Status(sys.stderr)
    llm, prompts = _of_shape(args, settings, status) if args.shape is not None else _of_model(args, status)
    with llm:
        record = profiling.profile(llm, prompts, settings, machine, status.show)
        if args.trace is not None:
            status.show(f"writing a trace of {count_of(NUM_TRACED, 'cycle')}")
            write_trace(llm, (prompts[0], profiling.params_of(settings)), args.trace)
    status.clear()
    print(to_json(record) if args.json else "\n".join(profile_page.lines(record)))
    return 0


def _of_model(args: argparse.Namespace, status: Status) -> tuple[Any, list[list[int]]]:
    if args.context is not None:
        raise ConfigError(f"context is {args.context}, which is for --shape; a model's prompts are given with --prompt")
    status.show(f"loading {args.model}")
    llm = options.load_llm(args, **_settings(args))
    texts = args.prompt or PROMPTS[:NUM_PROMPTS]
    return llm, [llm.encode([{"role": "user", "content": text}]) for text in texts]


def _of_shape(args: argparse.Namespace, settings: ProfileSettings, status: Status) -> tuple[Any, list[list[int]]]:
    for name, value, default in (("MODEL", args.model, DEFAULT_MODEL), ("--prompt", args.prompt, None)):
        if value != default:
            raise ConfigError(f"{name} is {value!r}, and --shape takes random weights instead; leave one of them out")
    if args.drafter not in ("auto", "none"):
        raise ConfigError(f"--drafter is {args.drafter!r}; with --shape it is auto, a random one, or none")
    if getattr(args, "tensor_parallel", 1) != 1:
        raise ConfigError(
            f"tensor_parallel is {args.tensor_parallel}; with --shape weights are drawn in one process: leave it out"
        )
    if args.aux_boundaries is not None:
        raise ConfigError("--aux-boundaries belong to a drafter's checkpoint, and --shape has none; leave them out")
    config = SHAPES[args.shape]()
    context = 1024 if args.context is None else args.context
    needed = context + settings.max_tokens
    if context < 1 or needed > config.max_positions:
        raise ConfigError(
            f"context is {context}; with answers of {count_of(settings.max_tokens, 'token')} it must lie in 1 … "
            f"{config.max_positions - settings.max_tokens}"
        )
    device = enter(resolve_device(args.device))
    drafter = args.drafter == "auto"
    given = {"max_context": needed, **_settings(args)}
    if drafter and given.get("k") != 0:
        given.setdefault("simulate_acceptance", (0.6,))
    status.show(f"drawing weights of {args.shape}")
    llm = random_llm(args.shape, drafter=drafter, device=device, dtype=resolve_dtype(args.dtype, device), **given)
    return llm, profiling.random_prompts(config.vocab_size, context, NUM_PROMPTS)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Of the engine: what was given, what a profile insists on, and room for what is measured beside it."""
    given = options.given(args, EngineConfig)
    return {"memory_fraction": MEMORY_FRACTION, **given, **ENGINE}
