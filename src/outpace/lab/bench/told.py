"""What an answer tells of its own speculation, in the dialects of servers.

| server | where | cycles | accepted by place |
|---|---|---|---|
| ours | `usage.speculation` | told, plain steps among them | `accepted_at`, of `drafted_at` |
| vLLM (pull request 48915) | `metrics.speculative_decoding` | `num_spec_steps` | a histogram |
| SGLang, if asked (pull request 33518) | `sglext.spec_tokens_details` | `spec_verify_ct` | a histogram |
| SGLang's usage, others' | `usage.completion_tokens_details` | tokens that no draft brought | no |
| llama.cpp | `timings.draft_n`, `draft_n_accepted` | the same | no |

vLLM tells if it was started with `--per-request-spec-decode-metrics`. Counts may hold drafts that were accepted behind
the answer's end: of tokens that reached the user there are no more than the answer's, less the first, prefill's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outpace.lab.bench.answer import Speculation

ASKING: dict[str, Any] = {"return_spec_tokens_details": True}
"""Field of a request that makes SGLang tell; others do not know it."""
STEPS = ("num_spec_steps", "num_verify_steps", "spec_verify_ct")
ACCEPTED = ("num_accepted_draft_tokens", "num_accepted_tokens", "spec_num_correct_drafts")
DRAFTED = ("num_draft_tokens", "spec_num_proposed_drafts")
HISTOGRAMS = ("acceptance_histogram", "spec_correct_drafts_histogram")
"""Cycles by how many drafts they accepted, from 0 on."""
MOST_PLACES = 64
MOST_COUNT = 1 << 53


def beside_usage(event: Mapping[str, Any]) -> dict[str, Any]:
    """What an event, or one of its choices, says of speculation beside its usage; empty where it says nothing."""
    metrics = part(event.get("metrics")).get("speculative_decoding")
    details = part(event.get("sglext")).get("spec_tokens_details")
    timings = part(event.get("timings"))
    return {
        **part(metrics),
        **part(details),
        **{name: timings[name] for name in ("draft_n", "draft_n_accepted") if name in timings},
    }


def speculation(usage: Mapping[str, Any], beside: Mapping[str, Any]) -> Speculation | None:
    """From what one answer told; None where that is nothing.

    Args:
        usage: the server's, of the whole answer.
        beside: `beside_usage` of all of its events together.
    """
    tokens = whole(usage.get("completion_tokens"))
    ours = part(usage.get("speculation"))
    if (cycles := whole(ours.get("cycles"))) and (emitted := _emitted(ours, cycles)) is not None:
        return Speculation(
            emitted=emitted,
            cycles=cycles,
            drafted=whole(ours.get("drafted")),
            accepted=whole(ours.get("accepted")),
            accepted_at=_counts(ours.get("accepted_at")),
            drafted_at=_counts(ours.get("drafted_at")),
        )
    accepted = _first(beside, ACCEPTED)
    if (steps := _first(beside, STEPS)) and accepted is not None:
        return Speculation(
            emitted=steps + accepted if not tokens else min(steps + accepted, tokens - 1),
            cycles=steps,
            drafted=_first(beside, DRAFTED),
            accepted=accepted,
            accepted_at=_places(next((beside[name] for name in HISTOGRAMS if beside.get(name)), ())),
        )
    return _without_cycles(tokens or 0, usage, beside)


def _emitted(ours: Mapping[str, Any], cycles: int) -> int | None:
    """Tokens out of cycles; our earlier versions told their number by an accept length over all cycles."""
    length = ours.get("accept_length")
    if "emitted" in ours or not isinstance(length, int | float):
        return whole(ours.get("emitted"))
    return round(length * cycles)


def _without_cycles(tokens: int, usage: Mapping[str, Any], beside: Mapping[str, Any]) -> Speculation | None:
    """Each cycle brings its accepted drafts and one token more; the first token of an answer is prefill's."""
    details = part(usage.get("completion_tokens_details"))
    accepted = whole(details.get("accepted_prediction_tokens"))
    rejected = whole(details.get("rejected_prediction_tokens"))
    drafted = None if accepted is None or rejected is None else accepted + rejected
    if not drafted:
        accepted, drafted = whole(beside.get("draft_n_accepted")), whole(beside.get("draft_n"))
    if tokens < 2 or not drafted or accepted is None:
        return None
    return Speculation(emitted=tokens - 1, cycles=max(1, tokens - 1 - accepted), drafted=drafted, accepted=accepted)


def _places(histogram: Any) -> tuple[float, ...]:
    """Accepted at each place of a draft: cycles that accepted more than so many; () where it is no histogram."""
    if isinstance(histogram, Mapping):
        places = [int(place) for place in histogram if str(place).isdigit()]
        histogram = [histogram.get(str(place), 0) for place in range(min(MOST_PLACES, max(places, default=-1)) + 1)]
    if not isinstance(histogram, Sequence) or any(whole(count) is None for count in histogram):
        return ()
    return tuple(float(sum(histogram[place + 1 :])) for place in range(min(MOST_PLACES, len(histogram) - 1)))


def _counts(told: Any) -> tuple[float, ...]:
    """Counts by place; () where it is no list of such."""
    if not isinstance(told, list) or any(whole(count) is None for count in told):
        return ()
    return tuple(map(float, told[:MOST_PLACES]))


def _first(values: Mapping[str, Any], names: Sequence[str]) -> int | None:
    return next((found for name in names if (found := whole(values.get(name))) is not None), None)


def part(value: Any) -> Mapping[str, Any]:
    """An object within another; empty where it is missing, or something else."""
    return value if isinstance(value, Mapping) else {}


def whole(value: Any) -> int | None:
    """A count; None where it is none. Some write 20.0, and nobody counts beyond `MOST_COUNT`."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_COUNT else None
