"""The target answers prompts, many at a time, through the engine's public API; what it wrote is kept as token ids.

About half of the answers are greedy, since that is how many people decode; the others are sampled at temperatures
around those that the rest use, so that the drafter meets tokens that are not the likeliest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from outpace.config import MAX_TOKENS, SamplingParams
from outpace.engine.llm import LLM
from outpace.engine.results import Result
from outpace.errors import ConfigError
from outpace.loops import final_period, trim_loop
from outpace.models.text.tokenizer import Tokenizer
from outpace.training.conversations import Conversation, Ints
from outpace.training.limits import MAX_RUN_SEED, check_limits
from outpace.training.prompts import Message, Prompt

MAX_LOOP_PERIOD = 160
"""Where a loop that an answer ends in is established, the lesson stops: a drafter learns it from a few tokens, and
hundreds more would crowd out the rest. Blocks are as long as a paragraph, since those are repeated for ever too."""

_MARK = "␟outpace␟"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerConfig:
    """How answers are written.

    Raises:
        ConfigError: a value is out of its range.
    """

    max_tokens: int = 512
    """Most tokens of an answer."""
    max_prompt: int = 1024
    """Prompts of more tokens are skipped and counted."""
    greedy_share: float = 0.5
    """Part of the answers that is greedy, 0 … 1; the others are sampled."""
    low_temperature: float = 0.7
    """Lowest temperature of those that are sampled; each has its own."""
    high_temperature: float = 1.0
    """Highest temperature of those that are sampled."""
    wave: int = 2048
    """Prompts handed to the engine at a time; several times its rows, so that few of them stand empty."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_limits(
            self,
            max_tokens=(1, MAX_TOKENS),
            max_prompt=(1, MAX_TOKENS),
            greedy_share=(0.0, 1.0),
            low_temperature=(0.0, 100.0),
            high_temperature=(self.low_temperature, 100.0),
            wave=(1, 1 << 20),
            seed=(0, MAX_RUN_SEED),
        )


@dataclass(slots=True)
class AnswerStats:
    """Running totals over all waves."""

    answers: int = 0
    tokens: int = 0
    """Assistant tokens kept."""
    greedy: int = 0
    ended: int = 0
    """Ended by a stop token."""
    looped: int = 0
    skipped: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Thread:
    """A conversation on its way."""

    prompt: Prompt
    messages: list[Message]
    turn: int = 0
    row: Conversation | None = None
    prompt_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """What one call of the engine finished."""

    conversations: list[Conversation]
    num_prompts: int
    """Prompts whose first turn it was; their further turns may still be open."""


def answer(
    llm: LLM,
    prompts: Sequence[Prompt],
    config: AnswerConfig,
    stats: AnswerStats,
    *,
    deadline: float | None = None,
    progress: bool = False,
) -> Iterator[Wave]:
    """Answers prompts wave by wave.

    Args:
        llm: an engine without a drafter, or with one; the answers are the same.
        prompts: answered in order.
        config: lengths and temperatures.
        stats: updated in place before each wave is yielded.
        deadline: `time.monotonic()` after which no wave begins; the last ones are made smaller to fit.
        progress: show on stderr how far a wave is.
    """
    tokenizer = _tokenizer(llm)
    random = np.random.default_rng(config.seed)
    pending = [_Thread(prompt, list(prompt.messages)) for prompt in reversed(prompts)]
    size = config.wave
    while pending and size:
        began = time.monotonic()
        taken = [pending.pop() for _ in range(min(size, len(pending)))]
        for thread in taken:
            thread.prompt_ids = tokenizer.encode_chat(thread.messages)
        wave = [thread for thread in taken if len(thread.prompt_ids) <= config.max_prompt]
        stats.skipped += len(taken) - len(wave)
        finished, further = _run_wave(llm, wave, config, stats, random, progress)
        spent = time.monotonic() - began
        stats.seconds += spent
        pending += further
        if deadline is not None:
            left = deadline - time.monotonic()
            size = min(config.wave, int(len(taken) * left / spent * 0.8)) if left > 0.1 * spent else 0
        yield Wave(conversations=finished, num_prompts=sum(thread.turn == 0 for thread in taken))
    if rest := [thread.row for thread in pending if thread.row is not None]:
        yield Wave(conversations=rest, num_prompts=0)


def _run_wave(
    llm: LLM,
    wave: list[_Thread],
    config: AnswerConfig,
    stats: AnswerStats,
    random: np.random.Generator,
    progress: bool,
) -> tuple[list[Conversation], list[_Thread]]:
    """Answers one turn of each thread: what is finished, and what has a further turn."""
    params = [_params(config, random) for _ in wave]
    results = llm.generate([thread.prompt_ids for thread in wave], params, progress=progress) if wave else []
    finished: list[Conversation] = []
    further: list[_Thread] = []
    for thread, param, result in zip(wave, params, results, strict=True):
        stats.greedy += param.temperature == 0.0
        stats.kinds[thread.prompt.kind] += 1
        whole = _record(thread, result, stats, finished)
        if whole and thread.turn < len(thread.prompt.followups):
            further.append(_next_turn(thread, result))
        elif thread.row is not None:
            finished.append(thread.row)
    return finished, further


def _params(config: AnswerConfig, random: np.random.Generator) -> SamplingParams:
    greedy = random.random() < config.greedy_share
    temperature = 0.0 if greedy else float(random.uniform(config.low_temperature, config.high_temperature))
    return SamplingParams(max_tokens=config.max_tokens, temperature=temperature, seed=int(random.integers(1 << 62)))


def _record(thread: _Thread, result: Result, stats: AnswerStats, finished: list[Conversation]) -> bool:
    """Joins the answer to the thread's row; says whether it ended by itself, so that a further turn makes sense."""
    ended = result.finish_reason == "stop"
    written = np.array(result.token_ids, dtype=np.int64)
    kept = written if ended else trim_loop(written, max_period=MAX_LOOP_PERIOD)
    stats.answers += 1
    stats.tokens += len(kept)
    stats.ended += ended
    stats.looped += len(kept) < len(written)
    ids = np.array(thread.prompt_ids, dtype=np.int64)
    earlier = thread.row
    spans: tuple[tuple[int, int], ...] = ()
    if earlier is not None and _begins_with(ids, earlier.tokens):
        spans = earlier.spans
    elif earlier is not None:  # encoding the earlier answer's text again gave other ids: two rows instead of one
        finished.append(earlier)
    row = Conversation(tokens=np.concatenate([ids, kept]), spans=(*spans, (len(ids), len(ids) + len(kept))))
    thread.row = row
    return ended


def _begins_with(ids: Ints, start: Ints) -> bool:
    return len(start) <= len(ids) and bool((ids[: len(start)] == start).all())


def _next_turn(thread: _Thread, result: Result) -> _Thread:
    question = thread.prompt.followups[thread.turn]
    said = [{"role": "assistant", "content": result.text}, {"role": "user", "content": question}]
    return _Thread(thread.prompt, [*thread.messages, *said], thread.turn + 1, thread.row)


def invent_prompts(
    llm: LLM,
    count: int,
    *,
    max_tokens: int = 160,
    wave: int = 2048,
    seed: int = 0,
    deadline: float | None = None,
) -> list[Prompt]:
    """Prompts that the target writes itself: fed the head of a user turn, it goes on (Magpie, arXiv:2406.08464).

    Args:
        llm: the engine.
        count: how many to sample, at temperature 1; fewer come back, since loops, cut ones and doubles are dropped.
        max_tokens: longest.
        wave: handed to the engine at a time.
        seed: of the first; the others follow.
        deadline: `time.monotonic()` after which no wave begins.
    """
    tokenizer = _tokenizer(llm)
    chat = tokenizer.render_chat([{"role": "user", "content": _MARK}], add_generation_prompt=False)
    head = tokenizer.encode(chat.split(_MARK)[0])
    texts: dict[str, None] = {}
    for first in range(0, count, wave):
        if deadline is not None and time.monotonic() > deadline:
            break
        params = [
            SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=seed + place)
            for place in range(first, min(count, first + wave))
        ]
        results = llm.generate([head] * len(params), params)
        texts |= dict.fromkeys(result.text.strip() for result in results if _usable(result))
    return [Prompt(messages=({"role": "user", "content": text},), kind="invented") for text in texts if len(text) >= 12]


def _usable(result: Result) -> bool:
    written = np.array(result.token_ids, dtype=np.int64)
    return result.finish_reason == "stop" and final_period(written, max_period=MAX_LOOP_PERIOD) is None


def _tokenizer(llm: LLM) -> Tokenizer:
    if llm.tokenizer is None:
        raise ConfigError(
            f"{llm.target.source.name} came without a tokenizer; prompts are texts, so the target needs one to answer "
            "them: put tokenizer.json beside the weights, or give a GGUF file, which holds its own"
        )
    return llm.tokenizer
