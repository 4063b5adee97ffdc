"""`outpace inspect MODEL_OR_DRAFTER`: what it is, and how it would be wired, without loading weights."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

from outpace import ConfigError
from outpace.cli import options
from outpace.engine.shipped import shipped_drafter
from outpace.lab.anatomy.drafter import DrafterAnatomy, drafter_anatomy, is_drafter
from outpace.lab.anatomy.target import TargetAnatomy, target_anatomy
from outpace.models.source import locate

SUMMARY = "what a model or a drafter is, and how it would be wired, without loading weights"
DESCRIPTION = """
Says what a checkpoint is: architecture, sizes, memory of its KV cache a token, tokenizer. For a drafter it says every
decision about its wiring, and where each came from; that takes its target, since the two must fit.

examples:
  outpace inspect smollm2
  outpace inspect ./model.gguf
  outpace inspect ./drafter --target smollm2
  outpace inspect ./drafter --target ./model --aux-boundaries 2 15 27 --json
"""
DESCRIBING_FILES = ("*.json", "*.jinja", "tokenizer.model")
"""What is fetched of a hub model to describe it: everything but its weights."""


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = options.new_parser(subparsers, "inspect", SUMMARY, DESCRIPTION)
    parser.add_argument("model", metavar="MODEL_OR_DRAFTER", help=options.MODEL_HELP)
    parser.add_argument("--target", metavar="MODEL", help="the model that the drafter is for")
    parser.add_argument("--aux-boundaries", type=int, nargs="+", metavar="B", help="taps, instead of the checkpoint's")
    options.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Reads headers and prints."""
    anatomy = examine(args)
    print(json.dumps(anatomy.as_dict()) if args.json else "\n".join(anatomy.lines()))
    return 0


def examine(args: argparse.Namespace) -> TargetAnatomy | DrafterAnatomy:
    """Takes what was named for a drafter if a target was named too.

    Raises:
        ConfigError: it is a drafter and no target was named, or it is a target and taps were.
    """
    source = locate(args.model, DESCRIBING_FILES)
    if args.target is not None:
        target = target_anatomy(locate(args.target, DESCRIBING_FILES))
        return drafter_anatomy(args.model, args.target, target.config, args.aux_boundaries)
    if is_drafter(source):
        raise ConfigError(f"{args.model} is a drafter; name the model that it is for: --target MODEL")
    if args.aux_boundaries is not None:
        raise ConfigError(f"--aux-boundaries are a drafter's, and {args.model} is a target; leave them out")
    return replace(target_anatomy(source), shipped_drafter=shipped_drafter(source.name))
