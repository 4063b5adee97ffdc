"""From a comparison to an experiment's outcome: what was measured, and what it says of the hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from outpace.errors import ConfigError
from outpace.lab.bench.subject import Subject, subject_of
from outpace.lab.doctor.case import subject as last_run
from outpace.lab.doctor.collect import runs_of
from outpace.lab.doctor.evidence import Run
from outpace.lab.experiments import applied
from outpace.lab.experiments.record import Experiment, Outcome, State
from outpace.lab.experiments.store import now
from outpace.lab.paired.blocks import counted
from outpace.lab.paired.record import CompareRecord, Side


def outcome(
    experiment: Experiment,
    record: CompareRecord,
    said: str,
    log_a: Path | None = None,
    log_b: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Judges.

    Args:
        experiment: what was asked.
        record: what was measured.
        said: the verdict on the speeds, in words.
        log_a, log_b: of the servers, which may tell what they do not.
        progress: told how far a long log was read.

    A log that cannot be read tells nothing, and the outcome says so: what was measured is none the worse for it.
    """
    a, b = record.a.server.settings, record.b.server.settings
    subjects = subject_of(experiment.a), subject_of(experiment.b)
    asked = applied.asked(*subjects, experiment.settings)
    if "commit" in asked or record.a.commit != record.b.commit:
        # What is asked of a side started here is what it runs; of another nobody knows.
        commits = _commit(subjects[0], record.a, record), _commit(subjects[1], record.b, record)
        asked["commit"], a, b = commits, {**a, "commit": commits[0]}, {**b, "commit": commits[1]}
    found = [applied.judge(name, of_a, of_b, a, b) for name, (of_a, of_b) in asked.items()]
    unread: list[str] = []
    runs_a, runs_b = (_runs(log, unread, progress) for log in (log_a, log_b))
    if runs_b:
        found = [applied.by_logs(each, runs_a, last_run(runs_b)) for each in found]
    state, ratio = applied.overall(found), record.verdict.ratio
    return Outcome(
        finished_at=now(),
        applied=state,
        settings=tuple(found),
        also_different=tuple(applied.also_different(a, b, list(asked))),
        observed=(*_observed(record), *unread),
        verdict=record.verdict.kind,
        ratio=None if ratio is None else ratio.value,
        low=None if ratio is None else ratio.low,
        high=None if ratio is None else ratio.high,
        confidence=None if ratio is None else ratio.confidence,
        conclusion=conclusion(state, said),
        cut_short=record.cut_short,
    )


def _runs(log: Path | None, unread: list[str], progress: Callable[[str], None]) -> list[Run]:
    """Of a log, if there is one; what keeps it from being read is noted."""
    try:
        return [] if log is None else runs_of(log, progress)[0]
    except ConfigError as error:
        unread.append(f"a log could not be read, and says nothing of the change: {error}")
        return []


def _commit(subject: Subject, side: Side, record: CompareRecord) -> str:
    """That a side was started with, as a fingerprint shows it; "" of a server that ran already."""
    if side.commit is not None:
        return side.commit[:12]
    return str(record.client.get("commit") or "") if subject.url is None else ""


def conclusion(state: State, said: str) -> str:
    """What the measurement says of the hypothesis."""
    if state == "applied":
        return f"The change was applied. {said}"
    if state == "not applied":
        return f"The change was not applied, so this says nothing of the hypothesis. Measured all the same: {said}"
    return f"Whether the change was applied is unknown, so the measurement may be of two equal servers. {said}"


def _observed(record: CompareRecord) -> list[str]:
    lines = []
    of_a, of_b = record.tok_s("A"), record.tok_s("B")
    lengths = {role: _lengths(record, role) for role in ("A", "B")}
    if of_a is not None and of_b is not None:
        lines.append(f"tok/s, geometric mean: A {of_a:.2f}, B {of_b:.2f}")
    if any(lengths.values()):
        told = ", ".join(
            f"{role} {median(found):.2f}" if found else f"{role} unknown" for role, found in lengths.items()
        )
        lines.append(f"median accept length: {told}")
    return [*lines, *record.notes]


def _lengths(record: CompareRecord, role: str) -> Sequence[float]:
    runs = [run for block in counted(record.blocks) for run in block.runs if run.role == role]
    return [run.accept_length for run in runs if run.accept_length is not None]
