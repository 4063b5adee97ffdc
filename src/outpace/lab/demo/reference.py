"""transformers' own `generate` on the same weights, timed the same way: the yardstick for plain decoding."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from typing import Any

import torch

from outpace import LLM
from outpace.lab.timing.answer import Timing
from outpace.models.gguf.checkpoint import read_gguf
from outpace.models.source import Source


def available() -> bool:
    """transformers is installed. It is not needed for anything else than this comparison."""
    return importlib.util.find_spec("transformers") is not None


class _Clock:
    """What transformers calls a streamer: told of the prompt first, then of every token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is held back."""


class Reference:
    """An engine's target as transformers' model class, in the same number format and on the same device."""

    def __init__(self, llm: LLM) -> None:
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._eos = sorted(llm.target.config.eos_token_ids)
        self._model: Any = _load(llm.target.source, llm.dtype).to(llm.device).eval()

    def time_answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Timing:
        """Decodes greedily until end of text or `max_tokens`."""
        ids = torch.tensor([list(prompt_ids)], device=self._model.device)
        clock = _Clock()
        answer = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            streamer=clock,
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=self._eos,
            pad_token_id=self._eos[0] if self._eos else 0,
        )
        start, first, *later = clock.times
        return Timing(
            token_ids=tuple(int(token) for token in answer[0, len(prompt_ids) :]),
            first_s=first - start,
            decode_s=later[-1] - first if later else 0.0,
            num_decoded=len(later),
            cycles=len(later),
        )


def _load(source: Source, dtype: torch.dtype) -> Any:
    """transformers asks for one more package to load a GGUF's weights, so those are read here and copied in."""
    import transformers

    if source.kind == "directory":
        return transformers.AutoModelForCausalLM.from_pretrained(source.path, dtype=dtype)
    config = transformers.AutoConfig.from_pretrained(source.path.parent, gguf_file=source.path.name)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    tensors = read_gguf(source.path).tensors
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name])
    return model
