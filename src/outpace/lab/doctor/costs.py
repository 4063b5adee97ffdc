"""Findings on what a cycle costs: which part of it, whether its parts explain the speed, and what would break even."""

from __future__ import annotations

from collections.abc import Iterator

from outpace.lab.breakeven.balance import Balance
from outpace.lab.doctor.case import Case, Measures, cites
from outpace.lab.doctor.finding import Finding, Kind

NEGLIGIBLE_MS = 0.5
NEGLIGIBLE_PART = 0.03
"""A residual below both is rounding."""


def findings(case: Case, m: Measures) -> Iterator[Finding]:
    """One for each question that the evidence can answer."""
    for found in (_share(case, m), _residual(case, m), _break_even(m)):
        if found is not None:
            yield found


def _share(case: Case, m: Measures) -> Finding | None:
    phase = case.subject.phase
    if phase is None or m.verify_ms is None or m.draft_ms is None or m.other_ms is None:
        return None
    parts = {"verify": m.verify_ms, "draft": m.draft_ms, "the other phases": m.other_ms}
    most = max(parts, key=parts.__getitem__)
    share = parts[most] / phase.sum_ms
    tokens = case.subject.verify_tokens
    steps = "" if m.step_ms is None else f"; it costs {parts[most] / m.step_ms:.2f} plain steps of {m.step_ms:.2f} ms"
    verified = f" ({tokens} tokens)" if most == "verify" and tokens else ""
    others = ", ".join(f"{name} {ms:.2f} ms" for name, ms in parts.items() if name != most)
    return Finding(
        question="which part of the cycle costs it",
        answer=f"{most}, {share:.0%}",
        text=f"{most.capitalize()}{verified} takes {parts[most]:.2f} of the {phase.sum_ms:.2f} ms that "
        f"{_profiled(case)} in a cycle, {share:.0%}{steps}. The rest: {others}.",
        confidence="high" if phase.cycles >= 100 else "medium",
        evidence=[phase.cite],
        numbers={**_times(m), "share": share, "profiled_cycles": phase.cycles},
    )


def _residual(case: Case, m: Measures) -> Finding | None:
    phase, cycle_ms, residual = case.subject.phase, m.cycle_ms, m.unexplained_ms
    if phase is None or cycle_ms is None or residual is None or m.speed is None or m.accept_length is None:
        return None
    assert m.phases_ms is not None
    explained = abs(residual) < max(NEGLIGIBLE_MS, NEGLIGIBLE_PART * cycle_ms)
    times = "" if m.running == 1 else f" × {m.running} rows"
    text = (
        f"{m.accept_length:.2f} tokens a cycle ({m.accept_how}){times} ÷ {m.speed.value:.1f} tok/s ({_of(m)}) is a "
        f"cycle of {cycle_ms:.1f} ms; the profiled phases add up to {m.phases_ms:.1f} ms. "
    )
    if explained:
        text += "They explain the speed."
    elif residual > 0:
        text += f"{residual:.1f} ms a cycle are in no phase."
    else:
        text += f"The phases take {-residual:.1f} ms more than the cycle they are part of: one of the figures is wrong."
    if m.printed_accept_length and abs(m.printed_accept_length - m.accept_length) > 0.01:
        printed_ms = cycle_ms * m.printed_accept_length / m.accept_length
        text += (
            f" With the accept length that the windows print (mean {m.printed_accept_length:.2f}) "
            f"it would be {printed_ms - m.phases_ms:.1f} ms."
        )
    return Finding(
        question="do the phases explain the speed",
        answer="yes" if explained else f"{abs(residual):.1f} ms " + ("unexplained" if residual > 0 else "too much"),
        text=text,
        confidence="medium" if m.speed.kind == "client" else "low",
        evidence=cites(phase.cite, m.speed, case.subject.windows[-1].cite if case.subject.windows else None),
        numbers={
            "cycle_ms": cycle_ms,
            "phases_ms": m.phases_ms,
            "unexplained_ms": residual,
            "accept_length": m.accept_length,
            "printed_accept_length": m.printed_accept_length,
        },
    )


def _break_even(m: Measures) -> Finding | None:
    if m.contradicted:
        return _contradiction(m)
    balance = m.balance
    if balance is None or m.step_ms is None:
        return None
    seen = "by the cycle that the speed implies" if m.cycle_ms else "by the profiled phases"
    text = (
        f"A cycle of {1e3 * balance.cycle_s:.1f} ms ÷ a plain step of {m.step_ms:.2f} ms: a cycle must bring "
        f"{balance.break_even:.2f} tokens {seen}; it brings {balance.accept_length:.2f}."
    )
    numbers = {"break_even_accept_length": balance.break_even, "accept_length": balance.accept_length}
    estimated = m.plain is not None and m.plain.estimated
    if estimated:
        text += " The plain step is estimated from the cost table of its control; plain decoding was not measured."
    if m.phases_ms is not None and m.cycle_ms is not None:
        numbers["by_phases"] = m.phases_ms / m.step_ms
        text += f" If a cycle took no more than its phases it would be {numbers['by_phases']:.2f}."
    if m.verify_ms is not None:
        numbers["break_even_verify_ms"] = 1e3 * balance.verify_s_for(balance.plain_tok_s)
        text += _verify_limit(balance, numbers["break_even_verify_ms"])
    return Finding(
        question="break-even accept length",
        answer=f"{balance.break_even:.2f}" + (", estimated from the cost table" if estimated else ""),
        text=text,
        confidence="low" if estimated else "high" if m.speed and m.speed.kind == "client" else "medium",
        evidence=cites(m.speed, m.plain),
        numbers=numbers,
    )


def _contradiction(m: Measures) -> Finding:
    """Instead of a break-even below 1, which no accept length can be below."""
    assert m.cycle_ms is not None and m.step_ms is not None
    return Finding(
        question="break-even accept length",
        answer="none: the figures contradict each other",
        text=f"{contradiction(m)} No break-even follows from them. Measure plain decoding beside it: the same "
        "prompts on the same machine.",
        confidence="low",
        evidence=cites(m.speed, m.plain),
        numbers={"cycle_ms": m.cycle_ms, "step_ms": m.step_ms, "accept_length": m.accept_length},
    )


def contradiction(m: Measures) -> str:
    """What two figures say that cannot both be so."""
    step = "a plain step"
    if m.plain is not None and m.plain.estimated:
        step += ", estimated from the cost table,"
    return (
        f"By the speed a cycle takes {m.cycle_ms:.1f} ms, and {step} takes {m.step_ms:.1f}: but a cycle does a plain "
        "step's work and more, so the two are hardly of one machine, batch and context."
    )


def _verify_limit(balance: Balance, verify_ms: float) -> str:
    if verify_ms <= 0:
        return " At this accept length no verify is fast enough: the rest of the cycle alone takes longer."
    return f" At this accept length verify may take {verify_ms:.1f} ms; it takes {1e3 * balance.verify_s:.1f}."


def _times(m: Measures) -> dict[str, float | None]:
    return {"verify_ms": m.verify_ms, "draft_ms": m.draft_ms, "other_ms": m.other_ms, "step_ms": m.step_ms}


def _of(m: Measures) -> str:
    assert m.speed is not None
    of_kind: dict[Kind, str] = {
        "client": "the client's median",
        "log": "the log's windows",
        "server": "the server's counters",
        "engine": "our engine",
    }
    return of_kind[m.speed.kind]


def _profiled(case: Case) -> str:
    return "the log profiles" if case.subject.kind == "log" else "were profiled"
