"""What a server's metrics say of speculation, in this project's terms.

Accept length is tokens a cycle that drafted, the bonus token included; acceptance rate is accepted ÷ drafted.

- ours: `outpace_cycles`, `outpace_emitted`, `outpace_drafted`, `outpace_accepted`, `outpace_drafted_at` and
  `outpace_accepted_at`, counters. Plain steps are cycles too; the two by position are of cycles that drafted there.
- vLLM: `vllm:spec_decode_num_drafts`, `…_draft_tokens`, `…_accepted_tokens`, `…_accepted_tokens_per_pos` and, newer,
  `…_draft_tokens_per_pos`, counters. Its draft is a cycle, and the bonus token is not among the accepted.
- SGLang: `sglang:spec_accept_length` and `sglang:spec_num_draft_tokens`, gauges of the last interval; the bonus token
  is in both. Its `spec_accept_rate` is accept length ÷ draft tokens in some versions and accepted ÷ proposed in others,
  so the rate is computed from the length instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean
from typing import Literal

from prometheus_client.parser import text_string_to_metric_families

from outpace.lab.bench.answer import Answer, Speculation

Source = Literal["requests", "counters", "gauge"]

GENERATED = ("outpace_tokens", "vllm:generation_tokens", "sglang:generation_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """From one source."""

    source: Source
    """The requests' own details, counters around the run, or a gauge sampled during it."""
    accept_length: float
    """Over the cycles that drafted; 1, a plain step's, where none did."""
    tokens_a_cycle: float
    """Over all cycles, plain steps among them: what reconciles with the speed."""
    plain_part: float = 0.0
    """Of the cycles, how many were plain steps."""
    acceptance_rate: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    cycles: float | None = None
    by_position: tuple[float, ...] = ()
    """Accepted at each place of a draft ÷ cycles that drafted there."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """One reading: {(name, position or ""): sum over all other labels}; of gauges, the mean of those above 0."""

    values: dict[tuple[str, str], float]

    def get(self, name: str, position: str = "") -> float | None:
        return self.values.get((name, position))


def read_metrics(text: str) -> Metrics:
    """Of a Prometheus text; counters have no `_total` here. What is no such text reads as empty."""
    counters: dict[tuple[str, str], float] = {}
    gauges: dict[tuple[str, str], list[float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = (sample.name.removesuffix("_total"), sample.labels.get("position", ""))
                if family.type == "counter" and not sample.name.endswith("_created"):
                    counters[key] = counters.get(key, 0.0) + sample.value
                elif family.type in ("gauge", "unknown"):
                    gauges.setdefault(key, []).append(sample.value)
    except ValueError:
        return Metrics({})
    means = {key: fmean([v for v in values if v > 0] or [0.0]) for key, values in gauges.items()}
    return Metrics(means | counters)


def of_requests(answers: Iterable[Answer]) -> Acceptance | None:
    """Summed over the requests that tell."""
    told = [answer.speculation for answer in answers if answer.speculation is not None]
    return _acceptance("requests", told) if told else None


def of_counters(before: Metrics, after: Metrics) -> Acceptance | None:
    """What was counted between two readings; None where nothing was, or the server was started anew between."""

    def grown(name: str, position: str = "") -> float:
        return (after.get(name, position) or 0.0) - (before.get(name, position) or 0.0)

    def by_place(name: str) -> tuple[float, ...]:
        places = sorted(int(place) for known, place in after.values if known == name and place.isdigit())
        return tuple(grown(name, str(place)) for place in places)

    if (cycles := grown("outpace_cycles")) > 0:
        ours = Speculation(
            emitted=grown("outpace_emitted"),
            cycles=cycles,
            drafted=grown("outpace_drafted"),
            accepted=grown("outpace_accepted"),
            accepted_at=by_place("outpace_accepted_at"),
            drafted_at=by_place("outpace_drafted_at"),
        )
        return _acceptance("counters", [ours])
    vllm = "vllm:spec_decode_num_"
    if (drafts := grown(f"{vllm}drafts")) > 0:
        accepted = grown(f"{vllm}accepted_tokens")
        theirs = Speculation(
            emitted=drafts + accepted,
            cycles=drafts,
            drafted=grown(f"{vllm}draft_tokens"),
            accepted=accepted,
            accepted_at=by_place(f"{vllm}accepted_tokens_per_pos"),
            drafted_at=by_place(f"{vllm}draft_tokens_per_pos"),
        )
        return _acceptance("counters", [theirs])
    return None


def of_gauge(readings: Sequence[Metrics], num_draft_tokens: int | None) -> Acceptance | None:
    """SGLang's gauge, the mean of its readings; `num_draft_tokens` is the server's setting where it tells one."""
    lengths = [length for reading in readings if (length := reading.get("sglang:spec_accept_length"))]
    if not lengths:
        return None
    told = [tokens for reading in readings if (tokens := reading.get("sglang:spec_num_draft_tokens"))]
    verified = fmean(told) if told else num_draft_tokens
    length = fmean(lengths)
    rate = (length - 1.0) / (verified - 1.0) if verified and verified > 1 else None
    return Acceptance(source="gauge", accept_length=length, tokens_a_cycle=length, acceptance_rate=rate)


def generated(before: Metrics, after: Metrics) -> float | None:
    """Tokens that the server wrote between two readings, for whomever; None where it does not count them."""
    for name in GENERATED:
        first, last = before.get(name), after.get(name)
        if last is not None and last >= (first or 0.0):
            return last - (first or 0.0)
    return None


def _acceptance(source: Source, told: Sequence[Speculation]) -> Acceptance:
    cycles, emitted = sum(each.cycles for each in told), sum(each.emitted for each in told)
    plain = sum(each.plain_cycles for each in told)
    drafting = cycles - plain
    drafted, accepted = (sum(getattr(each, name) or 0.0 for each in told) for name in ("drafted", "accepted"))
    return Acceptance(
        source=source,
        accept_length=(emitted - plain) / drafting if drafting else 1.0,
        tokens_a_cycle=emitted / cycles,
        plain_part=plain / cycles,
        acceptance_rate=accepted / drafted if drafted else None,
        drafted=drafted,
        accepted=accepted,
        cycles=cycles,
        by_position=_by_position([each for each in told if each.drafted != 0], cycles),
    )


def _by_position(told: Sequence[Speculation], cycles: float) -> tuple[float, ...]:
    """Of what drafted at all; () where some of it does not tell its places."""
    if not all(each.accepted_at for each in told):
        return ()
    accepted = [sum(counts) for counts in zip_longest(*(each.accepted_at for each in told), fillvalue=0.0)]
    drafted = [sum(counts) for counts in zip_longest(*(each.drafted_at for each in told), fillvalue=0.0)]
    if not all(each.drafted_at for each in told):
        drafted = [cycles] * len(accepted)
    return tuple(stood / made for stood, made in zip(accepted, drafted, strict=False) if made > 0)
