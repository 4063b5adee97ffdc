"""`outpace chat MODEL`: a conversation in the terminal, with speed and accept length after each answer."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

from outpace import LLM, Chunk, RequestError, SamplingParams
from outpace.cli import figures, options
from outpace.lab.timing.answer import Timing, time_answer

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  arrow keys and history at input(), where the platform has them

SUMMARY = "talk to a model; speed and accept length after each answer"
DESCRIPTION = """
Talks to a model. Reads one message a line, so a file or a pipe works too.

In the conversation: /reset forgets it, /help lists the commands, /quit (or end of input) leaves.
With --json each message gets one line: an answer, or an object with "error" where there is none.
Ctrl-C stops an answer; what was said so far is kept.

examples:
  outpace chat smollm2
  outpace chat smollm2 --system "Answer in one sentence." --temperature 0.7
  outpace chat smollm2 --stop "###" --stop=---  (an answer ends before one of these; = where it begins with a dash)
  outpace chat ./my-model --drafter ./my-drafter --k 6
  printf 'Hello!\\nWhat did I just say?\\n' | outpace chat smollm2 --json
"""
COMMANDS = "/reset  forget the conversation\n/help   this list\n/quit   leave"

Message = dict[str, str]


def add_parser(subparsers: Any) -> None:
    """Adds the command's options."""
    parser = options.new_parser(subparsers, "chat", SUMMARY, DESCRIPTION)
    options.add_model_flags(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message that opens the conversation")
    options.add_sampling_flags(parser)
    options.add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Talks until end of input."""
    params = options.sampling(args)
    opening = [] if args.system is None else [{"role": "system", "content": args.system}]
    llm = options.load_llm(args)
    if llm.tokenizer is None or llm.tokenizer.chat_template is None:
        raise RequestError(
            f"{args.model} has no chat template; continue texts with: outpace generate {args.model} --raw"
        )
    Conversation(llm, params, opening, as_json=args.json).run(interactive=sys.stdin.isatty())
    return 0


class Conversation:
    """What was said so far, and how it goes on."""

    def __init__(self, llm: LLM, params: SamplingParams, opening: list[Message], *, as_json: bool) -> None:
        self._llm = llm
        self._params = params
        self._opening = opening
        self._as_json = as_json
        self.messages = list(opening)

    def run(self, *, interactive: bool) -> None:
        """Reads messages until /quit or end of input."""
        if interactive:
            print(f"{self._llm.target.source.name} · /help lists the commands", file=sys.stderr)
        while (said := _read(interactive)) is not None:
            if said.startswith("/"):
                if not self._command(said):
                    return
            elif said:
                self._answer(said)

    def _command(self, said: str) -> bool:
        """Obeys a command; False ends the conversation."""
        match said:
            case "/quit" | "/exit":
                return False
            case "/reset":
                self.messages = list(self._opening)
                print("the conversation starts anew", file=sys.stderr)
            case _:
                self._tell(f"{said} gets no answer; the commands are /reset, /help and /quit", COMMANDS)
        return True

    def _tell(self, error: str, shown: str) -> None:
        """Says why there is no answer: one JSON line, or what people are shown."""
        if self._as_json:
            print(json.dumps({"error": error}), flush=True)
        else:
            print(shown, file=sys.stderr)

    def _answer(self, said: str) -> None:
        chunks: list[Chunk] = []
        self.messages.append({"role": "user", "content": said})
        try:
            timing = self._stream(chunks)
        except RequestError as error:
            self.messages.pop()
            self._tell(str(error), f"outpace: {error}\n/reset starts a new conversation")
            return
        self._remember("".join(chunk.text for chunk in chunks))
        self._report(chunks, timing)

    def _remember(self, answer: str) -> None:
        """A message that got no answer at all was not said."""
        if answer:
            self.messages.append({"role": "assistant", "content": answer})
        else:
            self.messages.pop()

    def _report(self, chunks: list[Chunk], timing: Timing | None) -> None:
        if timing is None:
            self._tell("stopped", "\n(stopped)")
        elif self._as_json:
            print(json.dumps(self._as_dict(chunks, timing)), flush=True)
        else:
            print(flush=True)
            print(figures.line(self._llm, timing, chunks[-1].stats), file=sys.stderr)

    def _stream(self, chunks: list[Chunk]) -> Timing | None:
        """None if the user stopped the answer."""
        tokenizer = self._llm.tokenizer
        assert tokenizer is not None
        try:
            prompt_ids = tokenizer.encode_chat(self.messages)
            return time_answer(self._llm, prompt_ids, self._params, lambda chunk: self._show(chunk, chunks))
        except KeyboardInterrupt:
            return None

    def _show(self, chunk: Chunk, chunks: list[Chunk]) -> None:
        chunks.append(chunk)
        if not self._as_json:
            print(chunk.text, end="", flush=True)

    def _as_dict(self, chunks: list[Chunk], timing: Timing) -> dict[str, Any]:
        return {
            "text": "".join(chunk.text for chunk in chunks),
            "finish_reason": chunks[-1].finish_reason,
            "stopped_by": chunks[-1].stopped_by,
            "stats": figures.as_dict(self._llm, timing, chunks[-1].stats),
        }


def _read(interactive: bool) -> str | None:
    """The next message; None at the end of input or at Ctrl-C."""
    try:
        if interactive:
            return input("\n> ").strip()
        line = sys.stdin.readline()
        return line.strip() if line else None
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)
        return None
