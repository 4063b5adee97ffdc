"""How the shipped drafter was made, in two phases that survive being cut short.

    python scripts/train_smollm2.py answers --prompts prompts.jsonl.gz --out answers --minutes 9
    python scripts/train_smollm2.py train --answers answers earlier --out drafter --minutes 16 --stop-after 8
    python scripts/train_smollm2.py train --answers answers earlier --out drafter --minutes 16 --resume

`answers` writes what the target says to the prompts (from `scripts/make_prompts.py`) and, once all of them are
answered, to --invent prompts that it makes up itself. `train` writes the drafter at every checkpoint, so what a killed
run leaves behind can be used; --minutes counts the time of all its calls together, --stop-after that of one. Files stay
under --shard-mib each.

The shipped drafter was trained with --settings '{"intermediate_size": 3072}', everything else as it is by default. It
learned from two folders of answers. `answers` holds those to 43,272 of the prompts; the target made
up none in this round. `earlier` holds 9,767 conversations of a former round, on
prompts that it had made up; 38 more, which shared eight words in a row with an evaluation item, had been dropped.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from outpace.engine.devices import resolve_device, resolve_dtype
from outpace.models.registry import LoadedTarget, load_target
from outpace.models.source import locate
from outpace.training.answers import AnswerConfig
from outpace.training.conversations import load_conversations
from outpace.training.folder import RunFolder
from outpace.training.journal import Journal
from outpace.training.pipeline import train_drafter
from outpace.training.prompts import read_prompts
from outpace.training.recipe import TrainConfig
from outpace.training.store import AnswerStore
from outpace.training.validate import ValidateConfig
from outpace.training.writing import Quota, answering_engine, write_answers


def main() -> None:
    args = _arguments()
    device = resolve_device(args.device)
    target = load_target(locate(args.model), dtype=resolve_dtype(args.dtype, device), device=device)
    args.out.mkdir(parents=True, exist_ok=True)
    with Journal(args.out / "metrics.jsonl", show=sys.stderr) as journal:
        if args.phase == "answers":
            _answers(args, target, journal)
        else:
            _train(args, target, journal)
        if device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(device)
            journal(
                {"event": "memory", "peak_gib": round(peak / 2**30, 2), "device": torch.cuda.get_device_name(device)}
            )


def _answers(args: argparse.Namespace, target: LoadedTarget, journal: Journal) -> None:
    config = AnswerConfig(max_tokens=args.max_tokens, wave=args.wave, seed=args.seed)
    stats = write_answers(
        answering_engine(target, config, max_rows=args.rows),
        read_prompts(args.prompts),
        AnswerStore(args.out, shard_bytes=args.shard_mib << 20),
        config,
        journal,
        num_invented=args.invent,
        quota=Quota(minutes=args.minutes, max_files=args.max_files),
    )
    print(json.dumps({"answers": stats.answers, "tokens": stats.tokens, "kinds": dict(stats.kinds)}))


def _train(args: argparse.Namespace, target: LoadedTarget, journal: Journal) -> None:
    settings = json.loads(args.settings)
    conversations = load_conversations(path for folder in args.answers for path in sorted(folder.glob("*.safetensors")))
    summary = train_drafter(
        target,
        conversations,
        TrainConfig(**{"minutes": args.minutes, "seed": args.seed, **settings}),
        RunFolder(out=args.out, checkpoints=args.checkpoints, shard_bytes=args.shard_mib << 20),
        journal,
        init_from=args.init_from,
        resume=args.resume,
        validation=ValidateConfig(num_prompts=64, max_tokens=192),
        stop_after=args.stop_after,
    )
    print(json.dumps(summary))


def _arguments() -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--model", default="smollm2", help="alias, GGUF file or directory")
    common.add_argument("--dtype", default="auto")
    common.add_argument("--device", default="auto")
    common.add_argument("--out", type=Path, required=True)
    common.add_argument("--minutes", type=float, required=True)
    common.add_argument("--shard-mib", type=int, default=15)
    common.add_argument("--seed", type=int, default=0)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    phases = parser.add_subparsers(dest="phase", required=True)
    answers = phases.add_parser("answers", parents=[common])
    answers.add_argument("--prompts", type=Path, required=True)
    answers.add_argument("--rows", type=int, default=512, help="answers written together")
    answers.add_argument("--wave", type=int, default=2048, help="answers handed to the engine at a time")
    answers.add_argument("--max-tokens", type=int, default=512)
    answers.add_argument(
        "--invent",
        type=int,
        default=20_000,
        help="prompts that the target makes up, once those of the file are answered",
    )
    answers.add_argument("--max-files", type=int, default=6)
    train = phases.add_parser("train", parents=[common])
    train.add_argument("--answers", type=Path, nargs="+", required=True, help="folders of answer files")
    train.add_argument("--checkpoints", type=Path, help="where checkpoints go (default OUT/checkpoint)")
    train.add_argument("--stop-after", type=float, help="minutes of this call; go on later with --resume")
    train.add_argument("--init-from", help="a drafter to fine-tune")
    train.add_argument("--resume", action="store_true")
    train.add_argument("--settings", default="{}", help="fields of TrainConfig, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
