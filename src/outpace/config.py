"""What a user may set. Frozen, keyword-only, validated where it is made; the command line mirrors it.

`EngineConfig` shapes one engine, `SamplingParams` one request. "auto" values (`None` here) are resolved once,
by `engine.llm`, into a new object that is kept and shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outpace.errors import ConfigError, OutpaceError, RequestError

MAX_K = 15
"""Longest draft chain: verify then feeds 16 tokens a row, one tile."""

MAX_SEED = 2**63 - 1
MAX_TOKENS = 1 << 24
"""Longest context, and so the longest answer."""
MAX_TOP_K = 2**31 - 1
MAX_STOP_TOKENS = 4096
GREEDY_BELOW = 1e-5
"""Temperatures below this decode greedily: logits divided by less would overflow, and no other token has a chance."""


def _check_integers(settings: Any, error: type[OutpaceError], limits: dict[str, tuple[int, int]]) -> None:
    """Integer fields of any integer type; None passes.

    Raises:
        error: a value is no integer, or out of its range.
    """
    for name, (low, high) in limits.items():
        value = getattr(settings, name)
        if value is None:
            continue
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise error(f"{name} is {value!r}; it must be an integer in {low} … {high}")
        if not low <= value <= high:
            raise error(f"{name} is {value}; it must lie in {low} … {high}")


def _check_real(settings: Any, error: type[OutpaceError], name: str, low: float, high: float) -> None:
    """One field that is a real number.

    Raises:
        error: the value is no number, or out of its range.
    """
    value = getattr(settings, name)
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise error(f"{name} is {value!r}; it must be a number in {low:g} … {high:g}")
    if not low <= value <= high:
        raise error(f"{name} is {value}; it must lie in {low:g} … {high:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine. Sizes are in tokens, rows or pages; memory is a fraction of what is free.

    Raises:
        ConfigError: a value is out of its range.
    """

    k: int = 4
    """Most drafted tokens per cycle, 0 … 15; 0 is plain decoding. Without a drafter it is 0."""
    control: Literal["auto", "fixed"] = "auto"
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
    prefix_reuse: bool = True
    """Keep finished requests' pages and reuse them for prompts that begin alike."""

    def __post_init__(self) -> None:
        limits = {
            "k": (0, MAX_K),
            "page_size": (1, 1024),
            "max_rows": (1, 4096),
            "prefill_chunk": (1, 1 << 20),
            "max_context": (2, MAX_TOKENS),
            "num_pages": (2, 1 << 28),
        }
        _check_integers(self, ConfigError, limits)
        if self.control not in ("auto", "fixed"):
            raise ConfigError(f'control is {self.control!r}; it must be "auto" or "fixed"')
        _check_real(self, ConfigError, "memory_fraction", 1e-12, 1.0)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is decoded. Speculation never changes the answer: only its speed depends on `max_k`.

    Truncation follows temperature: `top_k`, then `top_p`, then `min_p`, each over what the one before left.
    Tokens whose logit ties with the last one kept are kept too.

    Raises:
        RequestError: a value is out of its range.
    """

    max_tokens: int = 256
    """Longest answer; the context's end may come sooner."""
    temperature: float = 0.0
    """0 is greedy, and so is everything below 1e-5."""
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    """Same seed, same answer, whatever runs beside it; None draws a fresh one for each request."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_k: int | None = None
    """Most drafts per cycle for this request; 0 decodes it plainly, None leaves it to the engine."""

    def __post_init__(self) -> None:
        limits = {
            "max_tokens": (1, MAX_TOKENS),
            "top_k": (0, MAX_TOP_K),
            "seed": (0, MAX_SEED),
            "max_k": (0, MAX_K),
        }
        _check_integers(self, RequestError, limits)
        _check_real(self, RequestError, "temperature", 0.0, 100.0)
        _check_real(self, RequestError, "top_p", 1e-9, 1.0)
        _check_real(self, RequestError, "min_p", 0.0, 1.0)
        if not isinstance(self.stop_token_ids, Sequence) or isinstance(self.stop_token_ids, str | bytes):
            raise RequestError(f"stop_token_ids are {self.stop_token_ids!r:.60}; they must be a list of token ids")
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            raise RequestError(f"stop_token_ids are {len(self.stop_token_ids)}; there may be {MAX_STOP_TOKENS}")
        for token in self.stop_token_ids:
            if isinstance(token, bool) or not hasattr(token, "__index__"):
                raise RequestError(f"stop_token_ids holds {token!r}; it must hold token ids")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW
