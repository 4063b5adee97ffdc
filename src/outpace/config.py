"""What a user may set. Frozen, keyword-only, validated where it is made; the command line mirrors it.

`EngineConfig` shapes one engine, `SamplingParams` one request. "auto" values (`None` here) are resolved once,
by `engine.resolve`, into a new object that is kept and shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from outpace.checks import check_ids, check_integers, check_real, check_unicode, frozen_bias, frozen_words
from outpace.errors import ConfigError, RequestError
from outpace.grammar import Grammar

MAX_K = 15
"""Longest draft chain: verify then feeds 16 tokens a row, one tile."""
MAX_EXPERT_REUSE = 1024
MAX_SEED = 2**63 - 1
MAX_RANKS = 1024
MAX_TOKENS = 1 << 24
"""Longest context, and so the longest answer."""
MAX_TOP_K = 2**31 - 1
MAX_STOP_TOKENS = 4096
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_BAD_WORDS = 64
MAX_BAD_WORD = 16
"""Tokens in one."""
MAX_LOGPROBS = 20
GREEDY_BELOW = 1e-5
"""Temperatures below this decode greedily: logits divided by less would overflow, and no other token has a chance."""

Control = Literal["auto", "fixed"]
Weights = Literal["auto", "packed", "unpacked"]
Sums = Literal["auto", "library"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine. Sizes are in tokens, rows or pages; memory is a fraction of what is free.

    Raises:
        ConfigError: a value is out of its range.
    """

    k: int = 4
    """Most drafted tokens per cycle, 0 … 15; 0 is plain decoding. Without a drafter it is 0."""
    control: Control = "auto"
    """"auto" chooses 0 … k drafts for every cycle by measured cost and acceptance; "fixed" always drafts k."""
    page_size: int | None = None
    """Tokens in one KV page: the unit of allocation and of prefix reuse. None takes 64 on a GPU, whose kernel reads
    that many at a time, and 16 elsewhere."""
    max_rows: int = 16
    """Most requests decoded together; the others wait."""
    max_context: int | None = None
    """Longest prompt + answer in tokens; None takes the target's own limit."""
    prefill_chunk: int | None = None
    """Most prompt tokens computed in one forward, over all rows. None takes 2,048 on a GPU and 512 elsewhere."""
    memory_fraction: float = 0.5
    """Part of the memory left after the weights that KV pages may take."""
    num_pages: int | None = None
    """KV pages; None sizes them from `memory_fraction`."""
    simulate_acceptance: tuple[float, ...] = ()
    """Chance that a draft is accepted, by its place; the last holds for those behind. Answers are then simulated: worth
    nothing but their speed, and marked so. For measuring cost with random weights."""
    capture_s: float = 15.0
    """Seconds that may be spent at the start on compiling kernels and capturing graphs of the common shapes; what is
    left is compiled and captured when it is first needed. 0 does nothing ahead. Without a GPU there are no graphs."""
    eager: bool = False
    """Run forwards operation by operation, each waited for before the next is planned: no graphs, and nothing in
    flight. Slower on a GPU, and the same on a CPU; for looking inside."""
    weights: Weights = "auto"
    """Of a quantised checkpoint: "auto" keeps in memory as they are those that a kernel of this device takes, "packed"
    insists on it, "unpacked" brings all to the model's dtype as they are loaded. What came of it is in the notes."""
    expert_reuse: int = 0
    """LOSSY: answers are no longer plain decoding's. Of the experts of each drafted token of a mixture, so many, its
    least, are taken from those that tokens verified beside it read anyway, so that a verify reads fewer. 0 is exact."""
    prefix_reuse: bool = True
    """Keep finished requests' pages and reuse them for prompts that begin alike."""
    tensor_parallel: int = 1
    """Ranks that share the model, each a process with a GPU of its own, or on a CPU with a share of its cores."""
    nccl: tuple[str, ...] = ()
    """Settings of NCCL for all ranks, as NCCL_PROTO=LL. What every rank sees of them is shown beside."""
    sums: Sums = "auto"
    """Who brings the parts of several GPUs together: "auto" measures at the start up to what size memory that GPUs
    share is faster than NCCL, "library" leaves all to NCCL."""

    def __post_init__(self) -> None:
        limits = {
            "k": (0, MAX_K),
            "page_size": (1, 1024),
            "max_rows": (1, 4096),
            "prefill_chunk": (1, 1 << 20),
            "max_context": (2, MAX_TOKENS),
            "num_pages": (2, 1 << 28),
            "expert_reuse": (0, MAX_EXPERT_REUSE),
            "tensor_parallel": (1, MAX_RANKS),
        }
        check_integers(self, ConfigError, limits)
        for name, kind in (("control", Control), ("weights", Weights), ("sums", Sums)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise ConfigError(f"{name} is {value!r}; it must be {' or '.join(get_args(kind))}")
        check_real(self, ConfigError, "memory_fraction", 1e-12, 1.0)
        check_real(self, ConfigError, "capture_s", 0.0, 3600.0)
        if len(self.simulate_acceptance) > MAX_K:
            raise ConfigError(f"simulate_acceptance has {len(self.simulate_acceptance)} places; a cycle has {MAX_K}")
        for chance in self.simulate_acceptance:
            if not 0.0 <= chance <= 1.0:
                raise ConfigError(f"simulate_acceptance holds {chance}; each chance must lie in 0 … 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig(EngineConfig):
    """Settings in which nothing is left open."""

    page_size: int
    max_context: int
    prefill_chunk: int
    num_pages: int
    history: int = 256
    """Tokens of a row that its drafter can be shown again when drafting resumes."""


SAMPLING_INTEGERS = {
    "max_tokens": (1, MAX_TOKENS),
    "top_k": (0, MAX_TOP_K),
    "seed": (0, MAX_SEED),
    "min_tokens": (0, MAX_TOKENS),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "max_k": (0, MAX_K),
}
SAMPLING_REALS = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-9, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-9, 10.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
}
"""Ranges of the fields of `SamplingParams`, ends included."""


def _check_stops(stops: object) -> None:
    """Stop strings.

    Raises:
        RequestError: they are no list of texts, too many, or one is empty or too long.
    """
    if not isinstance(stops, Sequence) or isinstance(stops, str | bytes):
        raise RequestError(f"stop is {stops!r:.60}; it must be a list of 0 … {MAX_STOPS} texts")
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop holds {len(stops)} texts; there may be {MAX_STOPS}")
    for stop in stops:
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise RequestError(f"stop holds {stop!r:.60}; each must be a text of 1 … {MAX_STOP_CHARACTERS} characters")
        check_unicode(RequestError, "stop", stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is decoded. Speculation never changes the answer: only its speed depends on `max_k`.

    At every position, with the tokens before it, the logits go through `repetition_penalty`, `frequency_penalty`,
    `presence_penalty` and `logit_bias`; then tokens are banned (`bad_words`, `min_tokens`, `grammar`); then temperature
    divides them; then `top_k`, `top_p` and `min_p` truncate, each over what the one before left. Tokens whose logit
    ties with the last one kept are kept too. `logprobs` are of the logits before all that.

    Raises:
        RequestError: a value is out of its range.
    """

    max_tokens: int = 256
    """Most tokens of the answer; the context's end may come sooner."""
    temperature: float = 0.0
    """Divides the logits: 1 samples as the model says, 0 is greedy, and so is everything below 1e-5."""
    top_k: int = 0
    """How many of the likeliest tokens are kept; 0 keeps all."""
    top_p: float = 1.0
    """Keeps the likeliest tokens that together have this probability; 1 keeps all."""
    min_p: float = 0.0
    """Keeps tokens with at least this part of the likeliest one's probability; 0 keeps all."""
    seed: int | None = None
    """Same seed, same answer, whatever runs beside it (in 16 bits on a GPU: but at near-ties). None draws one."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer, at most 16; they are not part of it."""
    include_stop_str_in_output: bool = False
    """Show the stop text, or the stop token, that ended the answer."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the answer, beside the model's own."""
    ignore_eos: bool = False
    """Go on where the model would end the answer."""
    min_tokens: int = 0
    """Tokens that end the answer are banned until there are so many."""
    repetition_penalty: float = 1.0
    """Divides the positive logits of tokens in the prompt or the answer and multiplies the negative ones, 0 … 10."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit as often as the answer has it, -2 … 2."""
    presence_penalty: float = 0.0
    """Taken from the logits of tokens that the answer has, -2 … 2."""
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    """By token id, what is added to its logit, -100 … 100; kept as pairs."""
    bad_words: Sequence[Sequence[int]] = ()
    """Runs of token ids: the last one is banned where those before it stand, in the prompt's end too."""
    logprobs: int | None = None
    """How many alternatives to give with the log-probability of every token of the answer, 0 … 20; None gives none."""
    prompt_logprobs: int | None = None
    """The same for the prompt, which is then computed as a whole, whatever prefix is known."""
    max_k: int | None = None
    """Most drafts per cycle for this request; 0 decodes it plainly, None leaves it to the engine."""
    grammar: Grammar | None = None
    """The language that the answer is written in; a model without a tokenizer refuses it. Tokens that end the answer
    are admitted where it is complete; where nothing may follow, it ends ("stop"), whatever `min_tokens` says."""

    def __post_init__(self) -> None:
        check_integers(self, RequestError, SAMPLING_INTEGERS)
        if self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens is {self.min_tokens}; it may be at most max_tokens, {self.max_tokens}")
        for name, (low, high) in SAMPLING_REALS.items():
            check_real(self, RequestError, name, low, high)
        check_ids(RequestError, "stop_token_ids", self.stop_token_ids, MAX_STOP_TOKENS)
        bias = frozen_bias(RequestError, "logit_bias", self.logit_bias, MAX_BIASES, MAX_BIAS)
        words = frozen_words(RequestError, "bad_words", self.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD)
        object.__setattr__(self, "logit_bias", bias)
        object.__setattr__(self, "bad_words", words)
        _check_stops(self.stop)
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise RequestError(f"grammar is {self.grammar!r:.60}; it must be a Grammar")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def processed(self) -> bool:
        """The logits are changed before temperature: penalties, biases, bans."""
        penalised = self.repetition_penalty != 1.0 or self.frequency_penalty or self.presence_penalty
        return bool(penalised or self.min_tokens or self.logit_bias or self.bad_words)
