"""`LLM`: a model and its drafter behind four verbs: generate, chat, stream, describe.

    llm = LLM("smollm2")
    print(llm.generate("The capital of France is", SamplingParams(max_tokens=16))[0].text)

Whatever was left to "auto" is resolved once (`resolve`), and `describe` shows it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from operator import index
from typing import Any

import torch

from outpace.config import EngineConfig, SamplingParams
from outpace.distributed.group import ALONE
from outpace.engine import choices
from outpace.engine.devices import enter
from outpace.engine.engine import Engine
from outpace.engine.inputs import Messages, Prompt, is_id, params_of, prompts_of
from outpace.engine.live import LiveAnswer
from outpace.engine.memory import bytes_per_page, free_bytes
from outpace.engine.parts import load_parts
from outpace.engine.progress import Progress
from outpace.engine.ranks.start import Ranks, check_ranks
from outpace.engine.resolve import resolve, wanted
from outpace.engine.results import Chunk, Result
from outpace.errors import ConfigError, RequestError
from outpace.models.drafter import Drafter
from outpace.models.registry import LoadedTarget
from outpace.models.text.tokenizer import Tokenizer
from outpace.models.text.tool_formats import tool_format
from outpace.speculation.pair import Pair


class LLM:
    """A served model.

    Args:
        model: a directory, a GGUF file, a hub id, or the alias "smollm2".
        drafter: a directory or hub id of an EAGLE-3 drafter; "auto" takes the one shipped for the model, if there is
            one; None decodes plainly.
        dtype: "float32", "bfloat16", "float16" or "auto".
        device: "cpu", "cuda", "cuda:1", … or "auto".
        aux_boundaries: overrides which layers' inputs the drafter taps.
        options: fields of `EngineConfig`.

    Raises:
        ConfigError: a setting is unknown or out of range.
        CheckpointError: the model or the drafter cannot be loaded, or they do not fit.
        EngineError: the process of another rank did not come up.
    """

    ranks: Ranks | None = None
    """The processes that share the model, where there are several."""

    def __init__(
        self,
        model: str,
        *,
        drafter: str | None = "auto",
        dtype: str = "auto",
        device: str = "auto",
        aux_boundaries: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        asked = wanted(model, drafter, dtype, device, aux_boundaries, options)
        check_ranks(asked.config)
        if asked.config.tensor_parallel > 1:
            self.ranks = Ranks.start(asked)
        place = asked.device if self.ranks is None else self.ranks.device
        enter(place)
        try:
            parts = load_parts(
                asked.source,
                asked.drafter,
                dtype=asked.dtype,
                device=place,
                aux_boundaries=asked.aux_boundaries,
                group=ALONE if self.ranks is None else self.ranks.group,
                weights=asked.config.weights,
                taken=None if self.ranks is None else self.ranks.took_a_tensor,
            )
            if self.ranks is not None:
                self.ranks.wait_loaded()
            self._start(*parts, asked.config, asked.drafter)
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_parts(
        cls, target: LoadedTarget, drafter: Drafter | None = None, config: EngineConfig | None = None
    ) -> LLM:
        """An engine over models that are loaded already, whole; several engines may share them.

        Raises:
            ConfigError: a setting is out of range, or asks for several ranks.
        """
        if target.model.group.size > 1 or (config is not None and config.tensor_parallel > 1):
            raise ConfigError("tensor_parallel above 1 needs processes that load their own shares: use LLM(model, …)")
        llm = cls.__new__(cls)
        llm._start(target, drafter, config or EngineConfig(), None)
        return llm

    def _start(
        self, target: LoadedTarget, drafter: Drafter | None, config: EngineConfig, drafter_name: str | None
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.drafter_name = drafter_name
        self.dtype: torch.dtype = target.model.embed.weight.dtype
        self.device: torch.device = enter(target.model.embed.weight.device)
        free = free_bytes(self.device) if self.ranks is None else self.ranks.free_bytes()
        self.config = resolve(config, target.model, drafter, free)
        if self.ranks is not None:
            self.ranks.allocate(self.config)
        pair = Pair.allocate(
            target.model,
            drafter,
            num_pages=self.config.num_pages,
            page_size=self.config.page_size,
            dtype=self.dtype,
            expert_reuse=self.config.expert_reuse,
        )
        runner = None if self.ranks is None else self.ranks.runner(pair, self.config)
        self.engine = Engine(pair, self.config, runner=runner, tokenizer=target.tokenizer)

    def close(self) -> None:
        """Ends the processes of other ranks, after which it serves nothing; alone it has nothing to close."""
        if self.ranks is not None:
            self.ranks.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.target.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[Result]:
        """Answers prompts together; results come in the prompts' order.

        Args:
            prompts: one prompt or several, each a text (no chat template is applied) or token ids.
            params: one for all, or one a prompt.
            progress: show how far it is on stderr.

        Raises:
            RequestError: a prompt or its parameters cannot be served, and nothing was started; or a grammar left an
                answer without a token to go on with.
        """
        encoded = [self.encode(prompt) for prompt in prompts_of(prompts)]
        settings = params_of(params, len(encoded))
        answers = [self._ask(prompt, setting) for prompt, setting in zip(encoded, settings, strict=True)]
        try:
            for answer in answers:
                answer.begin()
            chunks = self._finish(answers, progress)
        finally:
            for answer in answers:
                answer.end()
        return [Result.of(prompt, written) for prompt, written in zip(encoded, chunks, strict=True)]

    def chat(self, messages: Messages, params: SamplingParams | None = None) -> Result:
        """Answers a conversation, rendered with the model's chat template."""
        return self.generate([self.encode(messages)], params)[0]

    def stream(self, prompt: Prompt | Messages, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """An answer while it is written, begun when the first chunk is asked for. Leaving the loop aborts the request.

        Args:
            prompt: a text (no chat template is applied), token ids, or a conversation.
            params: how to answer.

        Raises:
            RequestError: the prompt or its parameters cannot be served.
        """
        return self._chunks(self._ask(self.encode(prompt), params or SamplingParams()))

    def _ask(self, prompt_ids: list[int], params: SamplingParams) -> LiveAnswer:
        return LiveAnswer(self.engine, self.tokenizer, prompt_ids, params)

    def _chunks(self, answer: LiveAnswer) -> Iterator[Chunk]:
        try:
            answer.begin()
            while True:
                while (chunk := answer.take()) is None:  # streams that take turns each find their own
                    self.engine.step()
                yield chunk
                if chunk.finish_reason is not None:
                    return
        finally:
            answer.end()

    def encode(self, prompt: Prompt | Messages) -> list[int]:
        """Token ids of a text (with the model's special tokens around it), a conversation, or token ids.

        Raises:
            RequestError: it is none of these, or the model lacks the tokenizer or chat template for it.
        """
        if isinstance(prompt, str):
            return self._require_tokenizer().encode(prompt, add_special=True)
        items: list[Any] = list(prompt)
        if items and all(isinstance(item, dict) for item in items):
            return self._require_tokenizer().encode_chat(items)
        if all(map(is_id, items)):
            return [index(item) for item in items]
        wrong = next(item for item in items if not is_id(item))
        raise RequestError(f"{wrong!r:.60} is no token id; a prompt is a text, a list of token ids, or a conversation")

    def describe(self) -> dict[str, Any]:
        """Every resolved choice, as plain data for JSON."""
        form = None if self.tokenizer is None else tool_format(self.tokenizer.chat_template)
        return {
            "model": self.target.source.name,
            "target": asdict(self.target.config),
            "target_notes": list(self.target.notes),
            "drafter": None if self.drafter is None else self.drafter.wiring.describe(),
            "drafter_source": self.drafter_name,
            "tool_calls": None if form is None else form.describe(),
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "engine": asdict(self.config),
            "control": self.engine.control.describe(),
            "graphs": self.engine.runner.describe() | {"at_start": self.engine.warmed_up},
            "lossless": self.engine.config.expert_reuse == 0,
            "kernels": choices.kernels(self.target.model, self.drafter),
            "parallel": choices.parallel() if self.ranks is None else self.ranks.describe(),
            "kv_bytes": self.config.num_pages
            * bytes_per_page(self.target.model, self.drafter, self.config.page_size, self.dtype),
        }

    def _finish(self, answers: Sequence[LiveAnswer], progress: bool) -> list[list[Chunk]]:
        """Steps until all answers are finished; the chunks of each."""
        written: list[list[Chunk]] = [[] for _ in answers]
        waiting = list(zip(answers, written, strict=True))
        num_tokens = 0
        shown = Progress(len(answers), sys.stderr) if progress else None
        while waiting:
            self.engine.step()
            for answer, chunks in waiting:
                if (chunk := answer.take()) is not None:
                    chunks.append(chunk)
                    num_tokens += len(chunk.token_ids)
            waiting = [(answer, chunks) for answer, chunks in waiting if not chunks or not chunks[-1].finish_reason]
            if shown is not None:
                shown.show(len(answers) - len(waiting), num_tokens)
        return written

    def _require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                f"{self.target.source.name} came without a tokenizer: give prompts as token ids, or put tokenizer.json "
                "beside the weights"
            )
        return self.tokenizer
