"""What cannot be known from the evidence that was given, each with the one measurement that would tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outpace.lab.doctor.case import Case, Measures
from outpace.lab.doctor.costs import NEGLIGIBLE_MS
from outpace.lab.doctor.finding import Finding, Unknown

DEAR_VERIFY = 1.15
"""Plain steps above which the cause of a verify's cost is a question."""


def unknowns(case: Case, m: Measures, findings: Sequence[Finding]) -> Iterator[Unknown]:
    """Most pressing first."""
    if not case.subject.windows:
        if case.subject.kind == "server":
            yield Unknown(
                "how fast it is: nothing ran while it was watched", "the same while it works, or --num-prompts 8"
            )
        else:
            yield Unknown("everything: no decode window was read", "the server's own log, with decode statistics on")
        return
    if not case.subject.speculative:
        how = "its server with --control fixed" if case.subject.setup else "a drafter, logged likewise"
        yield Unknown("what speculation would bring", f"the same prompts with {how}")
        return
    yield from _speeds(case, m)
    yield from _cycle(case, m)
    answers = {finding.question: finding.answer for finding in findings}
    if answers.get("was verify graphed") == "cannot be known":
        yield Unknown(
            "whether verify ran in a CUDA graph",
            "run once with graphs disabled: if verify takes the same time, it was not graphed before",
        )
    if answers.get("did throughput fall with context or time", "").startswith("yes"):
        yield Unknown(
            "whether throughput falls with context or with time",
            "the same prompt behind a long one: if it starts at the low speed it is context, else time",
        )
    for question, answer in answers.items():
        if question.endswith(" applied") and answer != "not asked for" and "change was seen" not in answer:
            yield Unknown(
                f"{question.replace('was ', 'whether ').replace(' applied', ' is applied')} in the forward itself",
                "the same run with another value, its log beside this one (--baseline takes it)",
            )


def _speeds(case: Case, m: Measures) -> Iterator[Unknown]:
    if m.plain is None:
        yield Unknown("whether speculation pays", "the same prompts without speculation: its log as --baseline")
    elif m.plain.estimated:
        yield Unknown(
            "whether speculation pays, measured and not estimated",
            "outpace compare: this model served with --drafter none and with its drafter, the same prompts",
        )
    if case.subject.kind == "log" and (case.client is None or case.client.run is None):
        yield Unknown("what users get", "tokens a second at a client, a few runs, as --client")
    elif m.running > 1:
        yield Unknown(
            f"what a cycle takes at {m.running} rows by the client", "the client's throughput of all streams together"
        )


def _cycle(case: Case, m: Measures) -> Iterator[Unknown]:
    if m.phases_ms is None:
        yield Unknown("which part of the cycle costs it", "the times of draft and verify a cycle, by events or a trace")
    elif m.verify_ms and m.step_ms and m.verify_ms > DEAR_VERIFY * m.step_ms:
        yield Unknown(
            "why verify costs what it does: launches, experts, communication or attention",
            "verify's time at 2, 3, 5 and 8 tokens: if it stays it is launches or latency, if it grows it is experts "
            "or attention",
        )
    if m.unexplained_ms is not None and m.unexplained_ms > NEGLIGIBLE_MS:
        yield Unknown(
            "where the unexplained time of a cycle goes", "a trace of the host and the device over ten cycles"
        )
    if m.phases_ms is not None and not case.subject.per_position:
        yield Unknown("acceptance by position, and so which k is best", "accepted drafts counted for each position")
