"""A tiny target that a tiny drafter can learn, a tokenizer for it, and conversations that it wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from engine.tiny import VOCAB, tiny_target
from outpace import LLM, EngineConfig, SamplingParams
from outpace.models.registry import LoadedTarget
from outpace.training.conversations import Conversation

USER, END, ASSISTANT = 58, 59, 60
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,:!?"


class LetterTokenizer:
    """One token a letter; a chat is USER text END ASSISTANT, an answer ends with END."""

    chat_template = "letters"

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        marks = {"\x01": USER, "\x02": END, "\x03": ASSISTANT}
        return [marks[c] if c in marks else LETTERS.index(c) for c in text]

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        return "".join(LETTERS[i] for i in ids if i < len(LETTERS))

    def render_chat(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        marks = {"user": "\x01", "assistant": "\x03", "system": ""}
        text = "".join(f"{marks[m['role']]}{m['content']}\x02" for m in messages)
        return text + "\x03" if add_generation_prompt else text

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return self.encode(self.render_chat(messages))

    def stream(self, skip_special: bool = True, kept: object = ()) -> LetterStream:
        return LetterStream(self)


class LetterStream:
    """A letter is whole as soon as its token is there."""

    def __init__(self, tokenizer: LetterTokenizer) -> None:
        self._tokenizer = tokenizer

    def push(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(list(ids))

    def finish(self) -> str:
        return ""


@cache
def learnable_target() -> LoadedTarget:
    """Mostly a map from a token to the next, with a little of everything before."""
    loaded = tiny_target(eos_token_ids=(END,), max_positions=256)
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in loaded.model.layers.named_parameters():
            if "norm" not in name:
                parameter.normal_(0.0, 0.06)
        loaded.model.lm_head.weight.normal_(0.0, 0.7)
        loaded.model.lm_head.weight[[USER, ASSISTANT]] = 0.0
    return replace(loaded, tokenizer=LetterTokenizer())  # type: ignore[arg-type]


def engine(**options: object) -> LLM:
    settings: dict[str, object] = {"page_size": 4, "num_pages": 1500, "max_rows": 32, "prefill_chunk": 256}
    return LLM.from_parts(learnable_target(), None, EngineConfig(**(settings | options)))  # type: ignore[arg-type]


@cache
def conversations(count: int = 120) -> tuple[Conversation, ...]:
    """Answers to random prompts, half of them greedy."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB - 3, int(rng.integers(3, 9))).tolist() for _ in range(count)]
    params = [SamplingParams(max_tokens=24, temperature=0.8 * (i % 2), seed=i, ignore_eos=True) for i in range(count)]
    return tuple(
        Conversation(
            tokens=np.array(r.prompt_ids + r.token_ids), spans=((len(r.prompt_ids), len(r.prompt_ids + r.token_ids)),)
        )
        for r in engine().generate(prompts, params)
    )
