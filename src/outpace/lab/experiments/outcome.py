"""From a comparison to an experiment's outcome: what was measured, and what it says of the hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from outpace.lab.doctor.case import subject as last_run
from outpace.lab.doctor.collect import runs_of
from outpace.lab.experiments import applied
from outpace.lab.experiments.record import Experiment, Outcome, State
from outpace.lab.experiments.store import now
from outpace.lab.paired.blocks import counted
from outpace.lab.paired.record import CompareRecord
from outpace.lab.subject import subject_of


def outcome(
    experiment: Experiment, record: CompareRecord, said: str, log_a: Path | None = None, log_b: Path | None = None
) -> Outcome:
    """Judges.

    Args:
        experiment: what was asked.
        record: what was measured.
        said: the verdict on the speeds, in words.
        log_a, log_b: of the servers, which may tell what they do not.

    Raises:
        ConfigError: a log cannot be read.
    """
    a, b = record.a.server.settings, record.b.server.settings
    asked = applied.asked(subject_of(experiment.a), subject_of(experiment.b), experiment.settings)
    found = [applied.judge(name, of_a, of_b, a, b) for name, (of_a, of_b) in asked.items()]
    if log_b is not None:
        runs_a = [] if log_a is None else runs_of(log_a)[0]
        run_b = last_run(runs_of(log_b)[0])
        found = [applied.by_logs(each, runs_a, run_b) for each in found]
    state, ratio = applied.overall(found), record.verdict.ratio
    return Outcome(
        finished_at=now(),
        applied=state,
        settings=tuple(found),
        also_different=tuple(applied.also_different(a, b, list(asked))),
        observed=tuple(_observed(record)),
        verdict=record.verdict.kind,
        ratio=None if ratio is None else ratio.value,
        low=None if ratio is None else ratio.low,
        high=None if ratio is None else ratio.high,
        confidence=None if ratio is None else ratio.confidence,
        conclusion=conclusion(state, said),
    )


def conclusion(state: State, said: str) -> str:
    """What the measurement says of the hypothesis."""
    if state == "applied":
        return f"The change was applied. {said}"
    if state == "not applied":
        return f"The change was not applied, so this says nothing of the hypothesis. Measured all the same: {said}"
    return f"Whether the change was applied is unknown, so the measurement may be of two equal servers. {said}"


def _observed(record: CompareRecord) -> list[str]:
    good = counted(record.blocks)
    lines = []
    speeds = {role: [run.tok_s for block in good for run in block.runs if run.role == role] for role in ("A", "B")}
    lengths = {role: _lengths(record, role) for role in ("A", "B")}
    if all(speeds.values()):
        lines.append(f"median tok/s: A {median(speeds['A']):.2f}, B {median(speeds['B']):.2f}")
    if any(lengths.values()):
        told = ", ".join(
            f"{role} {median(found):.2f}" if found else f"{role} unknown" for role, found in lengths.items()
        )
        lines.append(f"median accept length: {told}")
    return [*lines, *record.notes]


def _lengths(record: CompareRecord, role: str) -> Sequence[float]:
    runs = [run for block in counted(record.blocks) for run in block.runs if run.role == role]
    return [run.accept_length for run in runs if run.accept_length is not None]
