"""A bench record as a page for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from outpace.fingerprint import one_line
from outpace.lab.bench.exposed import Acceptance
from outpace.lab.bench.figures import Bucket, Figures
from outpace.lab.bench.record import BenchRecord
from outpace.lab.intervals.bootstrap import Rate, Spread
from outpace.wording import count_of

WIDTH = 100
SOURCES = {"requests": "its answers", "counters": "counters in its metrics", "gauge": "a gauge in its metrics"}


def lines(record: BenchRecord) -> list[str]:
    """The page: what was measured, speeds, times, context, acceptance, what went wrong, what limits the figures."""
    server, figures = record.server, record.figures
    version = f" {server.version}" if server.version else ""
    page = [f"{server.model} at {server.url} ({server.engine}{version})", _what(record), ""]
    page += _speeds(figures)
    if figures.by_context:
        page += [
            "",
            "  decode tok/s of one stream, by context length",
            *map(_bucket, figures.by_context),
            *_fall(figures),
        ]
    page += ["", *_acceptance(record)]
    if figures.errors:
        page += [
            "",
            f"  {figures.num_failed} of {count_of(figures.num_requests, 'request')} failed and are in no speed above",
        ]
        page += [f"    {count:>4} {kind}   first: {figures.examples[kind]}" for kind, count in figures.errors.items()]
    for note in record.notes:
        page += textwrap.wrap(f"! {note}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    return [*page, f"  client: {one_line(record.client)}"]


def _what(record: BenchRecord) -> str:
    asking, load = record.asking, record.load
    what = ", ".join(asking.workload) or "MT-Bench, HumanEval and GSM8K"
    if asking.input_tokens is not None:
        what = f"prompts of about {count_of(asking.input_tokens, 'token')}"
    pace = f"{load.request_rate:g} a second" if load.request_rate is not None else f"{load.most_at_once} at a time"
    requests, tokens = count_of(record.figures.num_requests, "request"), count_of(asking.max_tokens, "token")
    return f"{requests}, {pace}, up to {tokens} each: {what}"


def _speeds(figures: Figures) -> Iterator[str]:
    yield f"  {'':28}{'median':>9}   {'95% interval':^19} {'p95':>10} {'p99':>10}"
    yield _row("total tok/s", figures.total_tok_s)
    yield _row("tok/s per user", figures.tok_s_per_user)
    yield _row("decode tok/s of one stream", figures.decode_tok_s)
    yield _row("time to first token, ms", figures.ttft_s, 1e3)
    yield _row("time per output token, ms", figures.tpot_s, 1e3)
    yield _row("inter-token latency, ms", figures.inter_token_s, 1e3)
    yield _row("inter-chunk latency, ms", figures.inter_chunk_s, 1e3)
    if figures.tokens_per_chunk is not None:
        yield f"  {'tokens per chunk':28}{figures.tokens_per_chunk:9.2f}"
    yield _row("whole answer, s", figures.latency_s)
    yield _row("tokens of a prompt", figures.prompt_tokens)
    yield _row("tokens of an answer", figures.completion_tokens)
    yield f"  {figures.requests_s:.3f} requests/s, {figures.mean_concurrency:.2f} at a time on average"
    if figures.goodput is not None:
        good = figures.goodput
        yield (
            f"  goodput: {count_of(good.num_good, 'request')} within all limits ({good.share:.0%}): "
            f"{good.requests_s:.3f} requests/s, {good.tok_s:.1f} tok/s"
        )


def _row(name: str, found: Spread | Rate | None, factor: float = 1.0) -> str:
    if found is None:
        return f"  {name:28}{'–':>9}"
    middle = found.median if isinstance(found, Spread) else found.value
    text = f"  {name:28}{factor * middle:9.2f}   {_range(found.low, found.high, factor):^19}"
    if isinstance(found, Spread):
        text += f" {factor * found.p95:10.2f} {factor * found.p99:10.2f}"
    return text.rstrip()


def _range(low: float | None, high: float | None, factor: float = 1.0) -> str:
    return "" if low is None or high is None else f"{factor * low:.2f} … {factor * high:.2f}"


def _bucket(bucket: Bucket) -> str:
    name = f"above {bucket.above:,}" if bucket.to is None else f"{bucket.above:,} … {bucket.to:,}"
    speed = bucket.tok_s
    return (
        f"    {name:26}{speed.value:9.2f}   {_range(speed.low, speed.high):^19} {bucket.tokens:10,.0f} tokens of "
        f"{count_of(bucket.num_requests, 'request')}"
    )


def _fall(figures: Figures) -> list[str]:
    """The slow end beside the fast start."""
    first, last = figures.by_context[0], figures.by_context[-1]
    if first is last or not first.tok_s.value:
        return []
    return [f"    the longest context runs at {last.tok_s.value / first.tok_s.value:.2f} of the shortest's speed"]


def _acceptance(record: BenchRecord) -> list[str]:
    if not record.acceptance:
        return ["  acceptance: the server tells none, neither in its answers nor in its metrics"]
    page = [_told(each) for each in record.acceptance]
    if record.implied_cycle_s is not None:
        page.append(
            f"  tokens a cycle ÷ decode tok/s: a cycle takes {1e3 * record.implied_cycle_s:.2f} ms, every gap included"
        )
    return page


def _told(found: Acceptance) -> str:
    rate = "" if found.acceptance_rate is None else f", acceptance rate {found.acceptance_rate:.3f}"
    places = "".join(f" {share:.2f}" for share in found.by_position)
    return f"  accept length {found.accept_length:.3f}{rate} by {SOURCES[found.source]}" + (
        f"; by position{places}" if places else ""
    )
