"""What `outpace bench` may be told about how to ask; `outpace compare` takes the same where it means something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outpace.checks import check_integers, check_real
from outpace.errors import ConfigError

Api = Literal["chat", "completions"]

LONGEST = 1 << 20
"""Most tokens of a prompt or an answer that may be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What is asked, and how each request is made."""

    workload: tuple[str, ...] = ()
    """What to ask: mt_bench, humaneval, gsm8k, or a JSONL file; none takes the three sets, evenly."""
    input_tokens: int | None = None
    """Prompts of about so many tokens instead, made of the workload's texts; what each really had is reported."""
    max_tokens: int = 256
    """Most tokens of an answer."""
    ignore_eos: bool = False
    """Answers go on to `max_tokens`: exact output lengths, where the server knows that field."""
    api: Api = "chat"
    """Which endpoint is asked."""
    temperature: float = 0.0
    """Of sampling; above 0 request i is sent seed + i."""
    seed: int = 0
    """Of sampling, of arrival times and of the order of prompts."""
    model_name: str | None = None
    """The name that requests carry; None takes the first that the server lists."""
    tokenizer: str | None = None
    """Counts tokens where the server sends no usage: a model's directory, .gguf file, hub id, or smollm2."""
    timeout_s: float = 600.0
    """A request that takes more seconds has failed."""

    def __post_init__(self) -> None:
        check_integers(
            self,
            ConfigError,
            {"input_tokens": (1, LONGEST), "max_tokens": (1, LONGEST), "seed": (0, (1 << 31) - 1)},
        )
        check_real(self, ConfigError, "temperature", 0.0, 10.0)
        check_real(self, ConfigError, "timeout_s", 0.001, 86400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much is asked at once, and which answers are good enough."""

    num_prompts: int = 24
    """Requests that are measured."""
    num_warmup: int = 2
    """Requests before, which are not; at least one for each that runs at a time."""
    concurrency: int | None = None
    """Requests that run at a time; None is 1, or whatever a request rate leads to."""
    request_rate: float | None = None
    """Requests a second, at random times (Poisson), instead of a concurrency."""
    max_ttft_ms: float | None = None
    """A limit for goodput: on the time to the first token, in milliseconds."""
    max_tpot_ms: float | None = None
    """A limit for goodput: on the time per output token, in milliseconds."""
    max_latency_ms: float | None = None
    """A limit for goodput: on the whole answer, in milliseconds."""
    context_edges: tuple[int, ...] = ()
    """Where buckets of context length end, ascending; none takes 256, 512, 1024, … as far as needed."""

    def __post_init__(self) -> None:
        limits = {"num_prompts": (1, 100_000), "num_warmup": (0, 10_000), "concurrency": (1, 4096)}
        check_integers(self, ConfigError, limits)
        for name in ("request_rate", "max_ttft_ms", "max_tpot_ms", "max_latency_ms"):
            if getattr(self, name) is not None:
                check_real(self, ConfigError, name, 1e-3, 1e9)
        if self.request_rate is not None and self.concurrency is not None:
            raise ConfigError(
                f"concurrency is {self.concurrency} and request_rate {self.request_rate:g}; give one of the two"
            )
        if any(low >= high for low, high in zip((0, *self.context_edges), self.context_edges, strict=False)):
            raise ConfigError(f"context_edges are {self.context_edges}; they must be above 0 and ascend")

    @property
    def most_at_once(self) -> int:
        """Requests of the warm-up that run at a time."""
        return self.concurrency or 1
