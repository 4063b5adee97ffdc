"""`outpace generate MODEL PROMPT`: one answer, streamed to stdout."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from outpace import LLM, Chunk, RequestError
from outpace.cli import figures, options
from outpace.lab.timing.answer import time_answer

SUMMARY = "answer one prompt and exit"
DESCRIPTION = """
Answers one prompt. The answer streams to stdout, figures follow on stderr.

The prompt is put into the model's chat template when it has one; --raw continues the text as it stands.

examples:
  outpace generate smollm2 "Why is the sky blue?"
  outpace generate smollm2 --raw "Once upon a time" --max-tokens 100 --temperature 0.8 --seed 1
  outpace generate smollm2 --raw "Q: What is 2+2? A:" --stop "Q:" --stop $'\\n\\n'
  outpace generate smollm2 "Is the sky blue?" --choice yes --choice no
  outpace generate smollm2 "Name a city." --json-schema city.json
  echo "Summarise: ..." | outpace generate smollm2 -
  outpace generate ./my-model "Hello" --drafter ./my-drafter --k 5 --dtype bfloat16
  outpace generate ./no-tokenizer --ids "1 15043 29892" --json
"""


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = options.new_parser(subparsers, "generate", SUMMARY, DESCRIPTION)
    options.add_model_flags(parser)
    parser.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from stdin")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--chat", action="store_true", help="insist on the chat template")
    form.add_argument("--raw", action="store_true", help="no chat template: continue the text")
    form.add_argument("--ids", action="store_true", help="PROMPT is token ids, separated by spaces or commas")
    options.add_sampling_flags(parser)
    options.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Answers, then says how fast it was."""
    params = options.sampling(args)
    text = sys.stdin.read() if args.prompt == "-" else args.prompt
    llm = options.load_llm(args)
    prompt_ids = encode(llm, args, text)
    chunks: list[Chunk] = []
    timing = time_answer(llm, prompt_ids, params, lambda chunk: _show(args, llm, chunk, chunks))
    answer, stats = "".join(chunk.text for chunk in chunks), chunks[-1].stats
    if args.json:
        print(
            json.dumps(
                {
                    "text": answer,
                    "token_ids": timing.token_ids,
                    "finish_reason": chunks[-1].finish_reason,
                    "stopped_by": chunks[-1].stopped_by,
                    "stats": figures.as_dict(llm, timing, stats),
                    "prompt_ids": prompt_ids,
                    "settings": llm.describe(),
                }
            )
        )
    else:
        print(flush=True)
        print(figures.line(llm, timing, stats), file=sys.stderr)
    return 0


def encode(llm: LLM, args: argparse.Namespace, text: str) -> list[int]:
    """Token ids of the prompt in the form that was asked for.

    Raises:
        RequestError: it is not in that form, or the model lacks the tokenizer or template for it.
    """
    if args.ids:
        return _parse_ids(text)
    if llm.tokenizer is None:
        raise RequestError(f"{args.model} came without a tokenizer: give token ids, with --ids")
    if args.chat or (not args.raw and llm.tokenizer.chat_template is not None):
        return llm.encode([{"role": "user", "content": text}])
    return llm.encode(text)


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(word) for word in text.replace(",", " ").split()]
    except ValueError as error:
        raise RequestError(
            f"--ids: {text!r} is not a list of token ids ({error}); write them like 1,15043,29892"
        ) from None


def _show(args: argparse.Namespace, llm: LLM, chunk: Chunk, chunks: list[Chunk]) -> None:
    chunks.append(chunk)
    if not args.json:
        piece = chunk.text if llm.tokenizer is not None else " ".join(map(str, chunk.token_ids)) + " "
        print(piece, end="", flush=True)
