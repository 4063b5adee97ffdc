"""Writes the training prompts of the shipped drafter: many kinds, none of them an evaluation item.

    python scripts/make_prompts.py --out prompts.jsonl.gz --sources SITE_PACKAGES

The shipped drafter learned from answers to 43,272 of this file's prompts, and from 9,767 conversations of an earlier
round, whose prompts the target had made up. A prompt that shares eight words in a row with an evaluation item is left
out here; of the earlier conversations, the 38 that did were dropped as well.

It reads what is installed on the machine (the standard library, packages given by --sources, Debian's `python3-doc` and
`debian-reference-en` where present) and fills templates. The texts stay under their own licences and are not part of
this repository; the script is. Same machine and seed, same file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from prompt_sources.contamination import Filter, evaluation_texts
from prompt_sources.conversation import requests
from prompt_sources.documents import names, passages
from prompt_sources.exercises import exercises
from prompt_sources.followups import with_followup
from prompt_sources.functions import functions
from prompt_sources.word_problems import word_problems

RST = Path("/usr/share/doc/python3.11/html/_sources")
TEXTS = (
    Path("/usr/share/debian-reference/debian-reference.en.txt.gz"),
    Path("/usr/share/doc/developers-reference/developers-reference.txt.gz"),
)

SHARES = {"requests": 0.44, "functions": 0.16, "exercises": 0.1, "word_problems": 0.2, "passages": 0.07, "names": 0.03}


def main() -> None:
    args = _arguments()
    random = Random(args.seed)
    banned = Filter(evaluation_texts())
    prompts, num_banned = _collect(_sources(args, random), args.count, banned)
    random.shuffle(prompts)
    prompts = [with_followup(p, random) if random.random() < args.followups else p for p in prompts]
    data = "".join(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in prompts).encode()
    args.out.write_bytes(gzip.compress(data, mtime=0) if args.out.suffix == ".gz" else data)
    kinds = Counter(str(prompt["kind"]) for prompt in prompts)
    report = {
        "prompts": len(prompts),
        "left_out_for_overlap": num_banned,
        "bytes": args.out.stat().st_size,
        "kinds": dict(kinds),
    }
    print(json.dumps(report))


def _sources(args: argparse.Namespace, random: Random) -> dict[str, Iterator[dict[str, Any]]]:
    roots = [Path(sysconfig.get_path("stdlib")), *args.sources]
    return {
        "requests": requests(random),
        "functions": functions(roots, random),
        "exercises": exercises(random),
        "word_problems": word_problems(random),
        "passages": passages(RST, [path for path in TEXTS if path.exists()], random),
        "names": names(RST, random),
    }


def _collect(
    sources: dict[str, Iterator[dict[str, Any]]], count: int, banned: Filter
) -> tuple[list[dict[str, Any]], int]:
    """Distinct prompts in the shares above, and how many were left out. A source that runs dry gives what it has."""
    prompts: list[dict[str, Any]] = []
    seen: set[str] = set()
    num_banned = 0
    for name, source in sources.items():
        wanted = round(count * SHARES[name])
        taken = 0
        for prompt in islice(source, 4 * wanted):
            text = str(prompt["prompt"])
            if text in seen:
                continue
            seen.add(text)
            if banned.overlaps(text):
                num_banned += 1
                continue
            prompts.append(prompt)
            taken += 1
            if taken == wanted:
                break
        print(f"{name}: {taken} of {wanted}", file=sys.stderr)
    return prompts, num_banned


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="JSONL file to write; .gz compresses")
    parser.add_argument(
        "--sources", type=Path, nargs="*", default=[], help="folders of Python sources besides the standard library"
    )
    parser.add_argument("--count", type=int, default=72_000)
    parser.add_argument("--followups", type=float, default=0.25, help="share of prompts with further turns")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
