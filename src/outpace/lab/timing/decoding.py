"""Engines that decode side by side from long contexts, through the loop that serves requests.

Two engines of an 8B model with 64 rows of 8,192 tokens do not fit into one GPU, and prefill would take most of a
measurement. So the engines here share one set of KV pages, filled with noise, and prompts are told to the prefix tree
as computed: a request enters as one whose prefix was seen before. What is written is worth nothing, and what it takes
is what serving takes; acceptance has to be simulated.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

import torch

from outpace import EngineError, SamplingParams
from outpace.config import ResolvedConfig
from outpace.engine import calibrate
from outpace.engine.devices import default_page_size, default_prefill_chunk
from outpace.engine.engine import Engine
from outpace.models.drafter import Drafter
from outpace.models.target import Target
from outpace.speculation.pair import Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of decoding, all rows together."""

    tokens: int
    seconds: float
    steps: int

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps

    def __add__(self, other: Window) -> Window:
        return Window(
            tokens=self.tokens + other.tokens, seconds=self.seconds + other.seconds, steps=self.steps + other.steps
        )


def noise_pair(target: Target, drafter: Drafter | None, *, num_rows: int, max_context: int) -> Pair:
    """Models and pages for so many full contexts; keys and values are normal noise, so that no product is all zeros."""
    weight = target.embed.weight
    page_size = default_page_size(weight.device)
    num_pages = num_rows * (1 + -(-max_context // page_size)) + 1
    pair = Pair.allocate(target, drafter, num_pages=num_pages, page_size=page_size, dtype=weight.dtype)
    for cache in filter(None, (pair.cache, pair.drafter_cache)):
        for layer in (*cache.keys_LNHD, *cache.values_LNHD):
            layer.normal_()
    return pair


class Decoder:
    """One engine, and the requests that it is decoding.

    Args:
        pair: shared with other decoders, whose keys and values are overwritten.
        k: most drafts a cycle; 0 is an engine that has no drafter at all.
        auto: k is chosen by control; if not, every cycle drafts k.
        num_rows: most requests at a time.
        max_context: longest prompt + answer.
    """

    def __init__(self, pair: Pair, *, k: int, auto: bool = False, num_rows: int, max_context: int) -> None:
        self.k, self._device = k, pair.cache.keys_LNHD.device
        page_size = pair.cache.page_size
        config = ResolvedConfig(
            k=k,
            control="auto" if auto else "fixed",
            page_size=page_size,
            prefill_chunk=default_prefill_chunk(self._device),
            max_rows=num_rows,
            max_context=max_context,
            num_pages=pair.cache.keys_LNHD.shape[1] // page_size,
            simulate_acceptance=(0.5,) if k else (),
            capture_s=0.0,  # what is measured warms up by itself
        )
        self.engine = Engine(pair if k else replace(pair, drafter=None, drafter_cache=None), config)
        self._vocab_size = pair.target.config.vocab_size
        self._ids: list[int] = []
        self._fresh_control = deepcopy(self.engine.control)

    def simulate(self, chances: Sequence[float]) -> None:
        """From now on a draft of row r stands with chance `chances[r % n]`, at every place."""
        chance_RK = self.engine.runner.state.chance_RK
        if chance_RK is not None:
            by_row = torch.tensor([chances[row % len(chances)] for row in range(len(chance_RK))])
            chance_RK.copy_(by_row[:, None].expand_as(chance_RK))

    def warm_up(self, num_rows: int, context: int) -> None:
        """Runs a cycle of every k that may be chosen, so that none is captured or compiled while time is taken."""
        ks = {self.k}
        if self.engine.config.control == "auto":
            ks |= {k for k in calibrate.CHOICES if k < self.k}
        for k in sorted(ks):
            calibrate.time_cycles(self.engine.runner, num_rows, k, context, 1)

    def clear(self) -> None:
        """Ends all requests and forgets all prefixes."""
        for request_id in self._ids:
            self.engine.abort(request_id)
        self._ids = []
        self._step(1 + self.engine.runner.num_ahead)
        self.engine.pages.reset()

    def admit(self, num_rows: int, context: int, max_tokens: int) -> None:
        """Starts that many requests behind `context` tokens each and steps until all decode.

        Control knows what it knew when the engine started: what was measured before says nothing about this.

        Raises:
            RequestError: they do not fit.
        """
        self.clear()
        self.engine.control = self.engine.scheduler.control = deepcopy(self._fresh_control)
        for row in range(num_rows):
            prompt = self._prompt(row, context)
            self._remember(prompt)
            params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=row)
            self._ids.append(self.engine.add(prompt, params))
        waiting = set(self._ids)
        while waiting:
            self.engine.step()
            waiting -= {update.request_id for update in self.engine.poll_all()}

    def run(self, num_tokens: int, *, continued: bool = False) -> Window:
        """Decodes until the rows have `num_tokens` more tokens each on average.

        Args:
            continued: nothing ran on the device since this decoder's last window. If not, the first steps are not
                timed: they collect what ended meanwhile and put a forward in flight.

        Raises:
            EngineError: a request ended, so that fewer rows decode than were to be measured.
        """
        if not continued:
            self._step(1 + self.engine.runner.num_ahead)
            self.engine.poll_all()
        began, tokens, steps = time.perf_counter(), 0, 0
        while tokens < num_tokens * len(self._ids):
            self.engine.step()
            steps += 1
            for update in self.engine.poll_all():
                tokens += len(update.token_ids)
                if update.finish_reason is not None:
                    raise EngineError("a request ended while it was measured; admit it with more max_tokens")
        return Window(tokens=tokens, seconds=time.perf_counter() - began, steps=steps)

    def first_token_s(self, num_tokens: int, behind: int = 0) -> float:
        """Seconds from a prompt, of which so many tokens are computed, to its first token; nothing else is running.

        Args:
            num_tokens: that are computed.
            behind: tokens before these that are known, in full pages.
        """
        self.clear()
        prompt = self._prompt(0, behind + num_tokens)
        self._remember(prompt[:behind])
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # another engine's last cycle may still be running
        began = time.perf_counter()
        self._ids = [self.engine.add(prompt, SamplingParams(max_tokens=2, ignore_eos=True))]
        while self.engine.poll(self._ids[0]) is None:
            self.engine.step()
        return time.perf_counter() - began

    @property
    def mean_context(self) -> float:
        """Tokens of a row that are cached."""
        return mean(sequence.num_cached for sequence in self.engine.scheduler.admitted)

    @property
    def num_pages_held(self) -> int:
        """Pages that requests or prefixes hold."""
        return self.engine.pages.num_usable - self.engine.pages.num_free

    def describe(self) -> dict[str, Any]:
        """Settings, what control knows, and what of the cycles is a graph, as plain data for JSON."""
        return {
            "engine": asdict(self.engine.config),
            "control": self.engine.control.describe(),
            "graphs": self.engine.runner.describe(),
        }

    def _remember(self, prompt: list[int]) -> None:
        """Tells the prefix tree that a prompt's full pages are computed."""
        pages = self.engine.pages
        taken = pages.take(len(prompt) // pages.page_size) or []
        held = len(taken) * pages.page_size
        pages.remember(prompt, taken, held, held)
        pages.release(taken)

    def _step(self, times: int) -> None:
        for _ in range(times):
            self.engine.step()

    def _prompt(self, row: int, num_tokens: int) -> list[int]:
        """Always the same for a row; no two rows begin alike."""
        return random.Random(row).choices(range(self._vocab_size), k=num_tokens)
