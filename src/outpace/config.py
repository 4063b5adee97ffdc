"""What a user may set. Frozen, keyword-only, validated where it is made; the command line mirrors it.

`EngineConfig` shapes one engine, `SamplingParams` one request. "auto" values (`None` here) are resolved once,
by `engine.llm`, into a new object that is kept and shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from outpace.errors import ConfigError, RequestError

MAX_K = 15
"""Longest draft chain: verify then feeds 16 tokens a row, one tile."""

MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine. Sizes are in tokens, rows or pages; memory is a fraction of what is free.

    Raises:
        ConfigError: a value is out of its range.
    """

    k: int = 4
    """Drafted tokens per cycle, 0 … 15; 0 is plain decoding. Without a drafter it is 0."""
    page_size: int = 16
    """Tokens in one KV page: the unit of allocation and of prefix reuse."""
    max_rows: int = 16
    """Most requests decoded together; the others wait."""
    max_context: int | None = None
    """Longest prompt + answer in tokens; None takes the target's own limit."""
    prefill_chunk: int = 512
    """Most prompt tokens computed in one forward, over all rows."""
    memory_fraction: float = 0.5
    """Part of the memory left after the weights that KV pages may take."""
    num_pages: int | None = None
    """KV pages; None sizes them from `memory_fraction`."""
    prefix_reuse: bool = True
    """Keep finished requests' pages and reuse them for prompts that begin alike."""

    def __post_init__(self) -> None:
        limits = (
            ("k", self.k, 0, MAX_K),
            ("page_size", self.page_size, 1, 1024),
            ("max_rows", self.max_rows, 1, 4096),
            ("prefill_chunk", self.prefill_chunk, 1, 1 << 20),
            ("max_context", 2 if self.max_context is None else self.max_context, 2, 1 << 24),
            ("num_pages", 2 if self.num_pages is None else self.num_pages, 2, 1 << 28),
        )
        for name, value, low, high in limits:
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value}; it must lie in {low} … {high}")
        if not 0.0 < self.memory_fraction <= 1.0:
            raise ConfigError(f"memory_fraction is {self.memory_fraction}; it must lie in 0 … 1, above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is decoded. Speculation never changes the answer: only its speed depends on `max_k`.

    Truncation follows temperature: `top_k`, then `top_p`, then `min_p`, each over what the one before left.
    Tokens whose logit ties with the last one kept are kept too.

    Raises:
        RequestError: a value is out of its range.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    """0 is greedy."""
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
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if not 0.0 <= self.temperature <= 100.0:
            raise RequestError(f"temperature is {self.temperature}; it must lie in 0 … 100")
        if self.top_k < 0:
            raise RequestError(f"top_k is {self.top_k}; it must be 0 (all) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p is {self.top_p}; it must lie in 0 … 1, above 0")
        if not 0.0 <= self.min_p <= 1.0:
            raise RequestError(f"min_p is {self.min_p}; it must lie in 0 … 1")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise RequestError(f"seed is {self.seed}; it must lie in 0 … 2^63-1")
        if self.max_k is not None and not 0 <= self.max_k <= MAX_K:
            raise RequestError(f"max_k is {self.max_k}; it must lie in 0 … {MAX_K}")
