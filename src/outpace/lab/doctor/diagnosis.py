"""Puts a diagnosis together: the findings, what to try, what cannot be known, and three sentences that say it all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outpace.lab.doctor import costs, paying, settings, trend
from outpace.lab.doctor.advice import advices
from outpace.lab.doctor.case import Case, Measures, measure
from outpace.lab.doctor.finding import Advice, Finding, Kind, Unknown
from outpace.lab.doctor.unknowns import unknowns
from outpace.lab.intervals.interval import Interval
from outpace.lab.intervals.verdict import by_estimate, exact, kind, lead, times
from outpace.lab.logs.reader import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything; `as_dict` is what `outpace doctor --json` prints."""

    subject: str
    """What was judged: a log's name, a URL, a model."""
    verdict: Sequence[str]
    findings: Sequence[Finding]
    advice: Sequence[Advice]
    unknown: Sequence[Unknown]
    read: Mapping[str, Tally]
    """How much of each file was read."""
    machine: Mapping[str, Any] | None = None
    """Fingerprint of where it was measured; None where a log was read, which another machine may have written."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "subject": self.subject,
            "verdict": list(self.verdict),
            "findings": [finding.as_dict() for finding in self.findings],
            "advice": [advice.as_dict() for advice in self.advice],
            "unknown": [asdict(unknown) for unknown in self.unknown],
            "read": {name: asdict(tally) for name, tally in self.read.items()},
            "machine": self.machine,
        }


BY: dict[Kind, str] = {
    "client": "as the client measured",
    "log": "by the log's windows",
    "server": "by the server's own figures",
    "engine": "as measured here",
}


def diagnose(
    case: Case,
    read: Mapping[str, Tally],
    asked_about: Sequence[str] = (),
    *,
    found: Sequence[Finding] = (),
    to_try: Sequence[Advice] = (),
    not_known: Sequence[Unknown] = (),
    machine: Mapping[str, Any] | None = None,
) -> Diagnosis:
    """Judges a case.

    Args:
        case: what was given.
        read: tallies of the files it comes from.
        asked_about: settings whose application is in question.
        found, to_try, not_known: what the source of the case knows beyond it.
        machine: fingerprint of where something was measured for this.
    """
    m = measure(case)
    findings = [paying.paying(case, m)]
    if case.subject.speculative:
        findings += [*costs.findings(case, m), *paying.acceptance(case)]
    findings += [*trend.findings(case, m), *settings.findings(case, m, asked_about), *found]
    advice = sorted([*advices(case, m), *to_try], key=lambda each: -each.tok_s)
    return Diagnosis(
        subject=case.subject.source,
        verdict=[_pays(case, m), _why(case, m), _what(case, m, advice)],
        findings=findings,
        advice=advice,
        unknown=[*unknowns(case, m, findings), *not_known],
        read=read,
        machine=machine,
    )


def _pays(case: Case, m: Measures) -> str:
    run = case.subject
    if not run.windows:
        if run.kind == "server":
            return f"{run.source} wrote nothing while it was watched."
        return f"{run.source} holds no decode window that could be read."
    if not run.speculative and run.setup:
        return f"{run.source} decoded plainly all the while; there is no speculation to judge."
    if not run.speculative:
        return f"{run.source} shows plain decoding only; there is no speculation to judge."
    if m.speed is None or m.plain is None:
        known = f"speculation ran at {m.speed.value:.1f} tok/s" if m.speed else "speculation was not timed"
        return f"Whether speculation pays cannot be said: {known}, and plain decoding was not measured beside it."
    assert m.over_plain is not None, "both speeds are known"
    if m.contradicted and m.plain.estimated:
        return f"Whether speculation pays cannot be said: its figures contradict each other. {costs.contradiction(m)}"
    by = BY[m.speed.kind]
    if m.plain.estimated:
        by = "plain's estimated from the cost table of its control"
    elif m.speed.kind != m.plain.kind:
        by = f"its own by the {m.speed.kind}, plain's by the {m.plain.kind}"
    how_much, words = _by_how_much(m.over_plain), lead(m.over_plain, m.over)
    if m.plain.estimated:
        how_much, words = paying.in_words(exact(m.over_plain.value)), by_estimate(m.over_plain.value)
    speeds = f"{m.speed.value:.1f} tok/s against {m.plain.value:.1f} plain"
    return f"{words}: {speeds}, {how_much}, {by}."


def _by_how_much(ratio: Interval) -> str:
    """In words where it is settled, else the interval that does not settle it."""
    return times(ratio) if kind(ratio) == "inconclusive" else paying.in_words(ratio)


def _why(case: Case, m: Measures) -> str:
    balance = m.balance
    run = case.subject
    if run.setup and not (run.windows and run.speculative):
        return run.setup
    if not run.speculative or m.accept_length is None:
        return "Nothing in it tells what a cycle of speculation costs or brings."
    if m.contradicted and m.plain is not None and not m.plain.estimated:
        return costs.contradiction(m)
    even = "" if balance is None else f" and would have to bring {balance.break_even:.2f} to break even"
    brings = f"a cycle brings {m.accept_length:.2f} tokens{f' ({m.accept_how})' if run.accepted else ''}{even}"
    if m.verify_ms is None or m.phases_ms is None:
        return f"{brings.capitalize()}; what its parts take is not told."
    part, ms = max(
        (("Verify", m.verify_ms), ("Draft", m.draft_ms or 0.0), ("The other phases", m.other_ms or 0.0)),
        key=lambda pair: pair[1],
    )
    steps = "" if balance is None else f", {ms / 1e3 / balance.step_s:.2f} plain steps"
    return f"{part} takes {ms / m.phases_ms:.0%} of the profiled cycle{steps}; {brings}."


def _what(case: Case, m: Measures, advice: Sequence[Advice]) -> str:
    if not case.subject.windows:
        if case.subject.kind == "server":
            return "Ask while it works, or let the doctor ask: --num-prompts 8."
        return "Give the log that the server itself writes."
    if (settling := paying.settling(m)) is not None and case.subject.speculative:
        return f"Measure more before anything is changed. {settling}"
    sure = [each for each in advice if each.confidence == "high"]
    hoped = [each for each in advice if each.confidence != "high"]
    if sure:
        return f"For now {sure[0].action}: {sure[0].tok_s:.1f} tok/s, measured{_later(m)}."
    if hoped:
        return f"Next {hoped[0].action}: it could reach {hoped[0].tok_s:.1f} tok/s."
    if m.plain is None and case.subject.speculative:
        return "Measure plain decoding on the same prompts first; nothing should be changed before that."
    return "Nothing that was measured asks for a change."


def _later(m: Measures) -> str:
    """From where on speculation would pay after all."""
    balance = m.balance
    if balance is None or m.verify_ms is None:
        return ""
    limit = 1e3 * balance.verify_s_for(balance.plain_tok_s)
    return f"; speculation pays once verify takes less than {limit:.1f} ms" if 0.0 < limit < m.verify_ms else ""
