"""Experiments in Markdown: a page for each, and the list of all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outpace.lab.experiments.record import Experiment, Outcome

NOT_RUN = "not run yet"


def markdown(experiment: Experiment) -> list[str]:
    """The page of one."""
    page = [f"# {experiment.name}", "", f"{experiment.created_at[:10]}. {_status(experiment)}", ""]
    page += ["## Hypothesis", experiment.hypothesis.strip(), "", "## The change", experiment.change.strip(), ""]
    page += [f"- A: `{experiment.a}`", f"- B: `{experiment.b}`"]
    page += [f"- asked of B: `{name}` = `{value}`" for name, value in experiment.settings.items()]
    return [*page, *([] if experiment.outcome is None else _outcome(experiment.outcome))]


def index(found: Sequence[tuple[Path, Experiment]], broken: Sequence[str] = ()) -> list[str]:
    """The list, the latest first, and why some are not in it."""
    page = ["# Experiments", "", "| date | experiment | hypothesis | applied | B ÷ A | verdict |", "|" + "---|" * 6]
    for folder, experiment in reversed(found):
        outcome = experiment.outcome
        cells = [
            experiment.created_at[:10],
            f"[{experiment.name}]({folder.name}/experiment.md)",
            _cell(experiment.hypothesis),
            outcome.applied if outcome else "",
            ratio(outcome) if outcome else "",
            outcome.verdict if outcome else NOT_RUN,
        ]
        page.append(f"| {' | '.join(cells)} |")
    return [*page, *(line for why in broken for line in ("", f"Not listed: {why}."))]


def ratio(outcome: Outcome) -> str:
    """With its interval."""
    if outcome.ratio is None:
        return "–"
    if outcome.low is None or outcome.high is None:
        return f"{outcome.ratio:.3f}"
    return f"{outcome.ratio:.3f} ({outcome.confidence or 0.95:.0%}: {outcome.low:.3f} … {outcome.high:.3f})"


def _status(experiment: Experiment) -> str:
    return f"**{NOT_RUN[0].upper()}{NOT_RUN[1:]}.**" if experiment.outcome is None else experiment.outcome.conclusion


def _outcome(outcome: Outcome) -> list[str]:
    page = ["", f"## Was it applied: {outcome.applied}"]
    if outcome.settings:
        page += ["| setting | asked of A | asked of B | A has | B has | applied | why |", "|" + "---|" * 7]
        for each in outcome.settings:
            cells = (each.name, each.asked_a, each.asked_b, each.says_a, each.says_b, each.state, each.why)
            page.append(f"| {' | '.join(_cell(cell) or '–' for cell in cells)} |")
    else:
        page.append("Nothing says which setting the change is, so nothing could be checked.")
    page += ["", *(f"- differs too, though nobody asked for it: {each}" for each in outcome.also_different)]
    page += ["", "## Result", f"B ÷ A = {ratio(outcome)}: {outcome.verdict}.", ""]
    return [*page, *(f"- {each}" for each in outcome.observed), "", f"Measured {outcome.finished_at}: `compare.json`."]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
