"""Findings on whether speculation pays, and whether acceptance looks like a drafter that is wired as it was trained."""

from __future__ import annotations

from collections.abc import Iterator

from outpace.lab.doctor.case import Case, Measures, cites, window_figure
from outpace.lab.doctor.costs import contradiction
from outpace.lab.doctor.finding import Confidence, Figure, Finding, Kind
from outpace.lab.intervals.interval import Interval
from outpace.lab.intervals.verdict import exact, in_short, kind, settles, times

LOW_FIRST = 0.4
"""Acceptance at position 0 below this is rare for a drafter that fits its target and gets what it was trained on."""
COLLAPSED = 0.1
"""Below this no drafter of the right kind is merely weak."""
SEEN: dict[Kind, str] = {
    "client": "client, median",
    "log": "log windows, mean",
    "server": "the server's own figures",
    "engine": "our engine, mean",
}
WINDOWS: dict[Kind, str] = {
    "client": "The client's own windows",
    "log": "The log's own windows",
    "server": "The server's own counters",
    "engine": "The engine's own answers",
}


def acceptance(case: Case) -> Iterator[Finding]:
    """What there is to say of drafts and how they stand."""
    if case.subject.per_position:
        yield _first_position(case)
    if case.subject.accept_rates is not None:
        yield _rate_meaning(case, *case.subject.accept_rates)


def paying(case: Case, m: Measures) -> Finding:
    """Its speed against plain decoding's."""
    question = "does speculation pay"
    if not case.subject.speculative and case.subject.windows:
        return Finding(
            question=question,
            answer="not used",
            text="No cycle drafted while it was seen."
            if case.subject.setup
            else "Nothing in the log speculates: no setting asks for it and no window prints an accept length.",
            confidence="high",
            evidence=cites(case.subject.windows[-1].cite),
        )
    if m.speed is None or m.plain is None:
        missing = "plain decoding was measured nowhere" if m.speed else "its own speed was measured nowhere"
        return Finding(
            question=question,
            answer="unknown",
            text=f"It cannot be said: {missing} at this batch.",
            confidence="low",
            evidence=cites(m.speed, m.plain),
        )
    ratio = m.over_plain
    assert ratio is not None, "both speeds are known"
    answer = f"estimated: {in_words(exact(ratio.value))}" if m.plain.estimated else in_words(ratio)
    text = f"{describe(m.speed)} against {describe(m.plain)} plain: {times(ratio)}."
    text += "".join(f" {sentence}" for sentence in [settling(m)] if sentence is not None)
    text += _also(case, m) + _of_whom(case)
    if m.contradicted:
        text += f" {contradiction(m)}"
        answer = "unknown" if m.plain.estimated else answer
    return Finding(
        question=question,
        answer=answer,
        text=text,
        confidence="low" if m.contradicted or m.plain.estimated else _confidence(m.speed, m.plain, ratio),
        evidence=cites(m.speed, m.plain),
        numbers={
            "ratio": ratio.value,
            "ratio_95": None if ratio.bounds is None else [round(bound, 4) for bound in ratio.bounds],
            "tok_s": m.speed,
            "plain_tok_s": m.plain,
        },
    )


def settling(m: Measures) -> str | None:
    """What would settle whether it pays; None where that is settled, or a speed was not measured."""
    if m.over_plain is None or (m.plain is not None and m.plain.estimated):
        return None
    if m.over is None:
        return "Speeds of two kinds of source have no interval: measure both at the same place."
    return settles(m.over_plain, m.over)


def in_words(ratio: Interval) -> str:
    """ "27% slower", "1.42× as fast", "the same speed", or that it cannot be told."""
    found = kind(ratio)
    if found == "inconclusive":
        return in_short(ratio)
    if found == "equivalent":
        return "the same speed"
    return f"{1.0 - ratio.value:.0%} slower" if found == "slower" else f"{ratio.value:.2f}× as fast"


def describe(figure: Figure) -> str:
    """A speed with its range and where it is from."""
    if figure.estimated:
        return f"about {figure.value:.1f} tok/s (estimated from the cost table of its control)"
    spread = f", {figure.low:.1f} … {figure.high:.1f} over {figure.count}" if figure.count > 1 else ""
    return f"{figure.value:.1f} tok/s ({SEEN[figure.kind]}{spread})"


def _also(case: Case, m: Measures) -> str:
    """What the logs say where the client has the word, and how its label was found."""
    if m.speed is None or m.speed.kind != "client":
        return ""
    client = case.client
    assert client is not None
    text = f" The client's label {client.run} was taken: {client.why}."
    own = window_figure(case.subject.windows, case.subject.kind)
    return (
        text
        if own is None
        else f"{text} {WINDOWS[case.subject.kind]} give {own.value:.1f} tok/s; the client's figure counts."
    )


def _of_whom(case: Case) -> str:
    """Which rank and which batch the windows are of, where there are several."""
    run, text = case.subject, ""
    if run.num_ranks > 1:
        text += f" {run.num_ranks} ranks print windows; those of {run.rank or 'the one without a name'} were taken."
    if len(run.by_running) > 1 or run.running > 1:
        text += f" Windows of {run.running} running requests were taken."
    return text


def _confidence(speed: Figure, plain: Figure, ratio: Interval) -> Confidence:
    """Where the interval settles it, high if both are from a client; from two kinds of source low."""
    if speed.kind != plain.kind:
        return "low"
    return "high" if speed.kind == "client" and kind(ratio) != "inconclusive" else "medium"


def _first_position(case: Case) -> Finding:
    rates = case.subject.per_position
    shown = ", ".join(f"{rate:.2f}" for rate in rates)
    low = rates[0] < LOW_FIRST
    collapsed = rates[0] < COLLAPSED
    cause = f"Position 0 stands in {rates[0]:.0%} of the cycles: no sign of wrong wiring."
    if low:
        says = "is wired wrongly" if collapsed else "may be wired wrongly"
        cause = (
            f"Position 0 stands in {rates[0]:.0%} of the cycles, below {LOW_FIRST:.0%}: the drafter {says} (the layers "
            "that it taps, its norm, its draft vocabulary) or made for another target, before it is called bad."
        )
        if case.subject.kind != "engine":
            cause += " `outpace doctor MODEL --drafter D` measures which wiring it was trained for."
    return Finding(
        question="is the drafter wired right",
        answer="no: wiring" if collapsed else "suspect" if low else "no sign against it",
        text=f"{cause} By position: {shown}.",
        confidence="medium",
        evidence=cites(case.subject.per_position_cite),
        numbers={"per_position": [round(rate, 4) for rate in rates]},
    )


def _rate_meaning(case: Case, rate: float, length: float) -> Finding:
    """Which of two formulas the printed accept rate follows; the answer is always in terms of drafts."""
    tokens, total = case.subject.verify_tokens, case.subject.total
    meaning, answer, numbers = "", "unclear", {"printed_rate": rate, "accept_length": length}
    if tokens and tokens > 1:
        real = (length - 1.0) / (tokens - 1)
        by_length, by_drafts = abs(rate - length / tokens), abs(rate - real)
        if min(by_length, by_drafts) < 0.02:
            formula = "accept length ÷ draft tokens" if by_length < by_drafts else "accepted ÷ drafted"
            meaning, answer = f"it follows {formula}; accepted ÷ drafted is {real:.2f}", f"{real:.2f}"
            numbers["acceptance_rate"] = real
    return Finding(
        question="acceptance rate",
        answer=answer,
        text=f"The log prints an accept rate of {rate:.2f} beside an accept length of {length:.2f}: "
        + (meaning or "which formula it follows cannot be told without the number of draft tokens")
        + ".",
        confidence="high" if meaning else "low",
        evidence=cites(total.cite if total else None),
        numbers=numbers,
    )
