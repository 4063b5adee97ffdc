"""Findings on settings: asked for, resolved, observed. And on what `cuda graph: True` says about verify: nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outpace.lab.doctor.case import Case, Measures
from outpace.lab.doctor.client import names_setting
from outpace.lab.doctor.evidence import Run, Value
from outpace.lab.doctor.finding import Cite, Finding

ALWAYS = ("speculative_attention_mode",)
"""SGLang's settings that are always looked at; a mode that changes nothing is the commonest riddle."""
CHANGED = 0.05
"""A quantity that moved by more than this part, beyond the ranges of both, has changed."""


def findings(case: Case, m: Measures, asked_about: Sequence[str]) -> Iterator[Finding]:
    """One for each setting, then one for graphs."""
    if case.subject.speculative:
        always = ALWAYS if case.subject.engine == "sglang" else ()
        for name in dict.fromkeys((*asked_about, *always)):
            yield _setting(case, name)
    if case.subject.graphs:
        yield _graphs(case.subject)


def _setting(case: Case, name: str) -> Finding:
    question = f"was {name} applied"
    asked, resolved = case.subject.asked.get(name), case.subject.resolved.get(name)
    if asked is None and resolved is None:
        return Finding(
            question=question,
            answer="not asked for",
            text=f"{name} is not among the arguments that the log prints, so nothing was to be applied.",
            confidence="high" if case.subject.asked else "low",
        )
    where = [value.cite for value in (asked, resolved) if value is not None]
    observed, answer, cited = _observed(case, name, asked)
    return Finding(
        question=question,
        answer=f"{_state(asked, resolved)}; {answer}",
        text=f"{_said(case.subject, name, asked, resolved)} {observed}",
        confidence="medium" if answer.startswith("no change") and cited else "low",
        evidence=[*where, *cited],
        numbers={"asked": _text(asked), "resolved": _text(resolved or asked)},
    )


def _state(asked: Value | None, resolved: Value | None) -> str:
    if asked is None:
        return "resolved, not asked for"
    return "asked for and resolved" if resolved is None or _same(asked, resolved) else "asked for, resolved otherwise"


def _said(run: Run, name: str, asked: Value | None, resolved: Value | None) -> str:
    if asked is None:
        assert resolved is not None
        return f"{name} = {resolved.value} is reported ({resolved.cite}) though the arguments do not ask for it."
    text = f"{name} = {asked.value} was asked for ({asked.cite})"
    if resolved is not None:
        same = "with the same value" if _same(asked, resolved) else f"as {resolved.value}"
        return f"{text} and is reported {same} ({resolved.cite})."
    if run.engine == "sglang":
        return (
            f"{text} and resolved to the same: SGLang prints its arguments after it has checked and completed them. "
            "No line of a worker names it."
        )
    return f"{text}; no line reports what it was resolved to."


def _observed(case: Case, name: str, asked: Value | None) -> tuple[str, str, list[Cite]]:
    """Whether a measured quantity differs between runs that differ in the setting; in words, in short, and where."""
    told = [*_client_pairs(case, name, asked), *_run_pairs(case, name)]
    flat = _flat_verify(case.subject)
    text = " ".join([sentence for sentence, _, _ in told] + ([flat[0]] if flat else []))
    cited = [cite for _, _, where in told for cite in where] + ([flat[1]] if flat else [])
    if any(changed for _, changed, _ in told):
        return text, "a change was seen", cited
    if told:
        return text, "no change seen", cited
    return f"{text} Nothing was measured with another value of it.".strip(), "effect unknown", cited


def _client_pairs(case: Case, name: str, asked: Value | None) -> Iterator[tuple[str, bool, list[Cite]]]:
    """The client's other speculative runs, if its labels tell them apart by this setting."""
    client = case.client
    if client is None or client.run is None or asked is None or not names_setting(client.run, name, str(asked.value)):
        return
    own = client.figure(client.run)
    for label in client.others:
        other = client.figure(label)
        ratio = own.value / other.value
        changed = abs(ratio - 1.0) > CHANGED and (own.low > other.high or other.low > own.high)
        said = "differ" if changed else "do not differ beyond their ranges"
        yield (
            f"The client's medians {said}: {own.value:.1f} tok/s with it, {other.value:.1f} in {label}.",
            changed,
            [own.cite, other.cite],
        )


def _run_pairs(case: Case, name: str) -> Iterator[tuple[str, bool, list[Cite]]]:
    """Other speculative runs in the logs with another value."""
    mine, own = case.subject.asked.get(name), case.subject.phase
    for run in case.others:
        theirs, phase = run.asked.get(name), run.phase
        if _text(mine) == _text(theirs) or own is None or phase is None:
            continue
        ratio = own.verify_ms / phase.verify_ms if phase.verify_ms else 1.0
        changed = abs(ratio - 1.0) > CHANGED and _apart(case.subject, run)
        yield (
            f"With {_text(theirs) or 'no value'} verify took {phase.verify_ms:.2f} ms, with {_text(mine)} "
            f"{own.verify_ms:.2f}.",
            changed,
            [phase.cite, own.cite],
        )


def _apart(a: Run, b: Run) -> bool:
    """The ranges of verify in two runs do not meet."""
    first, second = ([each.verify_ms for each in run.phases] for run in (a, b))
    return max(first) < min(second) or max(second) < min(first)


def _flat_verify(run: Run) -> tuple[str, Cite] | None:
    phase = run.phase
    if phase is None or not phase.verify_ms:
        return None
    times = [each.verify_ms for each in run.phases]
    if max(times) > (1.0 + CHANGED) * min(times):
        return None
    return f"The log shows no change in verify time: {min(times):.2f} … {max(times):.2f} ms throughout.", phase.cite


def _graphs(run: Run) -> Finding:
    ran, not_ran = run.graphs.get(True), run.graphs.get(False)
    count = sum(count for count, _ in run.graphs.values())
    verify = [cite for what, cite in run.captures.items() if "verify" in what]
    said = f"`cuda graph: True` stands on {ran[0] if ran else 0} of {count} decode lines."
    if not run.speculative:
        answer = "decode was graphed" if ran and not not_ran else "not always" if ran else "no"
        text = f"{said} In plain decoding that is the decode step itself."
    else:
        answer = "cannot be known"
        text = (
            f"{said} It is one flag for the whole batch: it does not say whether the verify forward, the draft or both "
            "ran in a graph, so it is no evidence that verify was graphed."
        )
        if ran is None:
            answer, text = "no", f"{said} No forward of the log's windows ran in a graph, verify included."
        elif verify:
            text += f" A graph of verify was captured ({verify[0]}); whether it was used is not printed."
    return Finding(
        question="was verify graphed" if run.speculative else "was decode graphed",
        answer=answer,
        text=text,
        confidence="high",
        evidence=[cite for _, cite in run.graphs.values()] + verify,
        numbers={"true": ran[0] if ran else 0, "false": not_ran[0] if not_ran else 0},
    )


def _same(a: Value, b: Value) -> bool:
    return str(a.value).lower() == str(b.value).lower()


def _text(value: Value | None) -> str | None:
    return None if value is None else str(value.value)
