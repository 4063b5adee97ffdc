"""`outpace train`: a drafter for a target, from prompts alone."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from outpace.cli import options
from outpace.engine.devices import resolve_device, resolve_dtype
from outpace.errors import ConfigError
from outpace.models.registry import LoadedTarget, load_target
from outpace.models.source import locate
from outpace.training.answers import AnswerConfig
from outpace.training.journal import Journal
from outpace.training.pipeline import answering_engine, train_drafter, write_answers
from outpace.training.prompts import read_prompts
from outpace.training.recipe import TrainConfig
from outpace.training.store import AnswerStore
from outpace.training.validate import ValidateConfig

SUMMARY = "train an EAGLE-3 drafter on answers that the target itself writes"
DESCRIPTION = """
Trains an EAGLE-3 drafter. The target answers the prompts; what it wrote, its hidden states and its next-token
distributions teach the drafter, which is written to --out in the form that other engines load too.

A prompt file has one JSON value a line: a text, or an object with "prompt", "turns" or "messages".

examples:
  outpace train --target smollm2 --prompts prompts.jsonl --out my-drafter --minutes 60
  outpace train --target ./model --prompts prompts.jsonl --out better --init-from ./drafter --epochs 1
  outpace train --target smollm2 --prompts prompts.jsonl --out my-drafter --minutes 60 --resume
"""
DEFAULT_EPOCHS = 4.0


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = options.new_parser(subparsers, "train", SUMMARY, DESCRIPTION)
    parser.add_argument("--target", metavar="MODEL", required=True, help=options.MODEL_HELP)
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help="JSONL, plain or .gz; not needed once answers exist"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", required=True, help="where the drafter and everything else goes"
    )
    parser.add_argument("--init-from", metavar="DRAFTER", help="fine-tune this drafter, whatever its dialect")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16 or auto: what suits the device")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto: the first GPU, else the CPU")
    parser.add_argument("--rows", type=int, default=256, metavar="N", help="answers written together (default 256)")
    parser.add_argument("--no-validation", action="store_true", help="measure no accept length by real drafting")
    options.add_fields(parser.add_argument_group("answers"), AnswerConfig, skip=("seed",))
    options.add_fields(parser.add_argument_group("training"), TrainConfig)
    options.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Writes what answers are missing, trains, and prints the accept length."""
    config = _train_config(args)
    device = resolve_device(args.device)
    dtype = resolve_dtype(args.dtype, device)
    target = load_target(locate(args.target), dtype=dtype, device=device)
    _make(args.out)
    with Journal(args.out / "metrics.jsonl", show=sys.stderr) as journal:
        store = AnswerStore(args.out / "answers")
        if not args.resume:
            _answer(args, target, store, journal)
        summary = train_drafter(
            target,
            store.load(),
            config,
            args.out,
            journal,
            init_from=args.init_from,
            resume=args.resume,
            validation=None if args.no_validation else ValidateConfig(seed=config.seed),
        )
    if args.json:
        print(json.dumps(summary))
    return 0


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be made ({error.strerror}); name a directory, new or old") from None


def _train_config(args: argparse.Namespace) -> TrainConfig:
    settings = options.given(args, TrainConfig)
    if not {"steps", "epochs", "minutes"} & set(settings):
        settings["epochs"] = DEFAULT_EPOCHS
    return TrainConfig(**settings)


def _answer(args: argparse.Namespace, target: LoadedTarget, store: AnswerStore, journal: Journal) -> None:
    if args.prompts is None:
        if not store.paths():
            raise ConfigError(f"{store.folder} holds no answers; give --prompts so that the target can write some")
        return
    config = AnswerConfig(**options.given(args, AnswerConfig))
    prompts = read_prompts(args.prompts)
    if len(prompts) > store.num_prompts_done:
        write_answers(answering_engine(target, config, max_rows=args.rows), prompts, store, config, journal)
