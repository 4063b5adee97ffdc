"""Accept length by real drafting: the engine generates answers to held-out prompts with the drafter as it was exported.

Teacher-forced figures say how training goes; this one is what a user gets, bonus token, stops and all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outpace.config import MAX_K, MAX_TOKENS, EngineConfig, SamplingParams
from outpace.engine.llm import LLM
from outpace.engine.results import RequestStats, Result
from outpace.errors import ConfigError
from outpace.models.drafter import Drafter
from outpace.models.registry import LoadedTarget
from outpace.training.limits import MAX_RUN_SEED, check_limits

PAGE_SIZE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateConfig:
    """What is generated.

    Raises:
        ConfigError: a value is out of its range.
    """

    k: int = 4
    max_tokens: int = 128
    temperatures: tuple[float, ...] = (0.0, 0.8)
    max_rows: int = 32
    num_prompts: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        check_limits(
            self,
            k=(1, MAX_K),
            max_tokens=(1, MAX_TOKENS),
            max_rows=(1, 4096),
            num_prompts=(1, 1 << 20),
            seed=(0, MAX_RUN_SEED),
        )
        if not self.temperatures or not all(0.0 <= temperature <= 100.0 for temperature in self.temperatures):
            raise ConfigError(f"temperatures is {self.temperatures}; give at least one, each in 0 … 100")


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """One temperature's outcome, over all prompts."""

    temperature: float
    k: int
    accept_length: float
    """Emitted tokens of cycles / cycles."""
    acceptance_by_position: tuple[float, ...]
    """Accepted / drafted at each place of the draft, over the prompts that reached it."""
    cycles: int
    emitted: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def validate(
    target: LoadedTarget, drafter: Drafter, prompt_ids: Sequence[Sequence[int]], config: ValidateConfig
) -> list[Validation]:
    """Drafts for real, once per temperature.

    Args:
        target: the served model, not changed.
        drafter: for it, in the same dtype.
        prompt_ids: prompts as token ids; the first `num_prompts` are used.
        config: how.
    """
    prompts = [list(ids) for ids in prompt_ids[: config.num_prompts]]
    limit = target.config.max_positions
    longest = min(limit, max(map(len, prompts)) + config.max_tokens + config.k + 1)
    pages = -(-longest // PAGE_SIZE) * config.max_rows + 2
    engine_config = EngineConfig(
        k=config.k,
        control="fixed",
        max_rows=config.max_rows,
        max_context=longest,
        page_size=PAGE_SIZE,
        num_pages=pages,
        prefill_chunk=4096,
        prefix_reuse=False,
    )
    llm = LLM.from_parts(target, drafter, engine_config)
    validations = []
    for temperature in config.temperatures:
        params = [
            SamplingParams(max_tokens=config.max_tokens, temperature=temperature, seed=config.seed + place)
            for place in range(len(prompts))
        ]
        validations.append(_summed(llm.generate(prompts, params), temperature, config.k))
    return validations


def _summed(results: Sequence[Result], temperature: float, k: int) -> Validation:
    total = RequestStats.total(result.stats for result in results)
    return Validation(
        temperature=temperature,
        k=k,
        accept_length=total.accept_length,
        acceptance_by_position=tuple(round(rate, 4) for rate in total.acceptance_by_position),
        cycles=total.cycles,
        emitted=total.emitted,
    )
