"""`outpace train`: a drafter for a target, from prompts alone."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from outpace.cli import options
from outpace.engine.devices import enter, resolve_device, resolve_dtype
from outpace.errors import ConfigError
from outpace.models.registry import LoadedTarget, load_target
from outpace.models.source import locate
from outpace.streams import to_nowhere
from outpace.training.answers import AnswerConfig
from outpace.training.folder import RunFolder
from outpace.training.interrupt import Interrupt, signals_as_ctrl_c
from outpace.training.journal import Journal
from outpace.training.pipeline import train_drafter
from outpace.training.prompts import read_prompts
from outpace.training.recipe import TrainConfig
from outpace.training.store import AnswerStore
from outpace.training.validate import ValidateConfig
from outpace.training.writing import answering_engine, write_answers

SUMMARY = "train an EAGLE-3 drafter on answers that the target itself writes"
DESCRIPTION = """
Trains an EAGLE-3 drafter. The target answers the prompts; what it wrote, its hidden states and its next-token
distributions teach the drafter, which is written to --out in the form that other engines load too.

A prompt file has one JSON value a line: a text, or an object with "prompt", "turns" or "messages".

With every checkpoint, and at the end, the drafter as it then is goes to --out. Ctrl-C, SIGTERM or a closed terminal
ends the run after the step that runs, with a checkpoint, and says the command that goes on from there; a second Ctrl-C
stops at once, and nohup lets the run outlive its terminal. A run that was cut while it answered is given the same file
again; one that was cut while it trained takes --resume instead. Measured in --steps or --epochs it then gives what it
would have given in one go.

examples:
  outpace train --target smollm2 --prompts prompts.jsonl --out my-drafter --minutes 60
  outpace train --target ./model --prompts prompts.jsonl --out better --init-from ./drafter --epochs 1
  outpace train --target smollm2 --out my-drafter --minutes 60 --resume
"""
DEFAULT_EPOCHS = 4.0
DEFAULT_ROWS = 256
STDERR = 2
"""Told from a signal handler, which Python's own streams may not be written from."""
STOPPING = (
    "\noutpace: stopping after this step, with a checkpoint; Ctrl-C or SIGTERM once more stops at once, without what "
    "is new\n"
)


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
    parser.add_argument(
        "--dtype", default="auto", help="float32, bfloat16 or auto: what suits the device (default auto)"
    )
    parser.add_argument("--device", default="auto", help=options.DEVICE_HELP)
    answers = parser.add_argument_group("answers")
    answers.add_argument("--rows", type=int, metavar="N", help=f"answers written together (default {DEFAULT_ROWS})")
    parser.add_argument("--no-validation", action="store_true", help="measure no accept length by real drafting")
    options.add_fields(answers, AnswerConfig, skip=("seed",))
    length = f"How long it trains: --steps, --epochs or --minutes; without them --epochs {DEFAULT_EPOCHS:g}."
    options.add_fields(parser.add_argument_group("training", length), TrainConfig)
    options.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Writes what answers are missing, trains, and prints the accept length."""
    with signals_as_ctrl_c():
        try:
            return _run(args)
        except KeyboardInterrupt:
            _tell_how_to_go_on(args)
            raise


def _run(args: argparse.Namespace) -> int:
    config = _train_config(args)
    answer_config = _answer_config(args)
    folder = RunFolder(out=args.out)
    folder.check(resume=args.resume)
    device = enter(resolve_device(args.device))
    dtype = resolve_dtype(args.dtype, device)
    target = load_target(locate(args.target), dtype=dtype, device=device)
    _make(args.out)
    interrupt = Interrupt(tell=_tell_that_it_stops)
    with Journal(args.out / "metrics.jsonl", show=sys.stderr) as journal:
        store = AnswerStore(args.out / "answers")
        if answer_config is not None:
            _answer(args, answer_config, target, store, journal)
        elif not store.paths():
            remedy = (
                "put back those it was begun with" if args.resume else "give --prompts so that the target writes some"
            )
            raise ConfigError(f"{store.folder} holds no answers; {remedy}")
        summary = train_drafter(
            target,
            store.load(),
            config,
            folder,
            journal,
            init_from=args.init_from,
            resume=args.resume,
            validation=None if args.no_validation else ValidateConfig(seed=config.seed),
            interrupt=interrupt,
        )
    if args.json:
        print(json.dumps(summary))
    if interrupt.asked:
        raise KeyboardInterrupt
    _say(f"the drafter is in {args.out}; what it gains:", ["doctor", args.target, "--drafter", str(args.out)])
    return 0


def _tell_that_it_stops() -> None:
    try:
        os.write(STDERR, STOPPING.encode())
    except OSError:
        to_nowhere(STDERR)  # the terminal is gone


def _tell_how_to_go_on(args: argparse.Namespace) -> None:
    """Says what is kept, and the command that goes on with it; nothing where there is nothing yet."""
    words = ["train", "--target", args.target, "--out", str(args.out)]
    for name in ("init_from", "dtype", "device"):
        if (value := getattr(args, name)) not in (None, "auto"):
            words += [f"--{name.replace('_', '-')}", value]
    words += options.words_of(args, TrainConfig)
    words += ["--no-validation"] * args.no_validation + ["--json"] * args.json
    if RunFolder(out=args.out).has_checkpoint:
        kept, words = "a checkpoint is kept", [*words, "--resume"]
    elif (args.out / "answers").is_dir() and AnswerStore(args.out / "answers").num_prompts_done:
        kept = "the answers so far are kept"
        if args.prompts is not None:
            words += ["--prompts", str(args.prompts), *options.words_of(args, AnswerConfig, skip=("seed",))]
            words += [] if args.rows is None else ["--rows", str(args.rows)]
    else:
        return
    _say(f"{kept}; to go on:", words)


def _say(what: str, command: list[str]) -> None:
    try:
        print(f"\noutpace: {what}\n  {shlex.join(['outpace', *command])}", file=sys.stderr)
    except OSError:
        to_nowhere(STDERR)  # the terminal is gone


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


def _answer_config(args: argparse.Namespace) -> AnswerConfig | None:
    """How answers are written; None if none are.

    Raises:
        ConfigError: flags that would have no effect.
    """
    settings = options.given(args, AnswerConfig)
    if args.resume and args.prompts is not None:
        raise ConfigError("--prompts has no effect with --resume, which goes on training on the answers in --out")
    if args.prompts is not None:
        return AnswerConfig(**settings)
    unused = [name for name in settings if name != "seed"] + ["rows"] * (args.rows is not None)
    if unused:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise ConfigError(f"{flags} without --prompts: no answers are written, so leave that out")
    return None


def _answer(
    args: argparse.Namespace, config: AnswerConfig, target: LoadedTarget, store: AnswerStore, journal: Journal
) -> None:
    prompts = read_prompts(args.prompts)
    if store.left(prompts):
        rows = DEFAULT_ROWS if args.rows is None else args.rows
        llm = answering_engine(target, config, max_rows=rows)
        write_answers(llm, prompts, store, config, journal, progress=sys.stderr.isatty())
