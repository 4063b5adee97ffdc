"""The record of a run: every event as a line of JSON in a file, and as a line for people.

Numbers of a step, in the order of the draft steps: agreement is how often the drafter's best token is the target's,
expected acceptance the chance that a sampled draft is accepted; what lies outside the draft vocabulary is a miss.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from outpace.wording import count_of

Record = dict[str, Any]
_CLOSED = (errno.EIO, errno.EPIPE)
"""What writing says where a terminal is closed, or nobody reads."""


class Journal:
    """Call it with records.

    Args:
        path: appended to.
        show: where lines for people go; None shows nothing. A terminal that is closed meanwhile ends showing alone.
    """

    def __init__(self, path: Path, *, show: TextIO | None) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._show = show

    def __call__(self, record: Record) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if self._show is not None:
            line = describe(record)
            try:
                print(line, file=self._show, flush=True)
            except OSError as error:
                if error.errno not in _CLOSED:
                    raise
                self._show = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def describe(record: Record) -> str:
    """One line."""
    form = _FORMS.get(str(record["event"]))
    return form(record) if form else json.dumps(record)


def _step(record: Record) -> str:
    left = record["left_seconds"]
    return (
        f"step {record['step']}  loss {record['loss']:.4f}  accept length {record['accept_length']:.3f}  "
        f"agreement {_list(record['agreement'])}  acceptance {_list(record['expected_acceptance'])}  "
        f"rate {record['rate']:.2e}  |g| {record['gradient']:.2f}  {record['tokens_per_second']:.0f} tok/s  "
        f"left {'?' if left is None else _clock(left)}"
    )


def _held_out(record: Record) -> str:
    return (
        f"held out at step {record['step']}  loss {record['loss']:.4f}  accept length {record['accept_length']:.3f}  "
        f"agreement {_list(record['agreement'])}  acceptance {_list(record['expected_acceptance'])}"
    )


def _answers(record: Record) -> str:
    return (
        f"{count_of(record['answers'], 'answer')}, {count_of(record['tokens'], 'token')} at "
        f"{record['tokens_per_second']:.0f} tok/s; "
        f"{record['greedy']} greedy, {record['ended']} ended, {record['looped']} looped, {record['skipped']} skipped"
    )


def _start(record: Record) -> str:
    coverage = record["coverage"]
    covered = "kept" if coverage is None else f"covers {coverage:.2%} of the answers' tokens"
    return (
        f"{count_of(record['conversations'], 'conversation')}, "
        f"{count_of(record['assistant_tokens'], 'assistant token')}, "
        f"batches an epoch: {record['batches_per_epoch']}; {record['parameters'] / 1e6:.1f}M parameters; "
        f"draft vocabulary {record['draft_vocab_size']}, {covered}; peak rate {record['peak_rate']:.2e}; "
        f"{record['attention']} on {record['machine']['device']}"
    )


def _measured(record: Record) -> str:
    name = "before" if record["event"] == "before" else "trained"
    if not record.get("finished", True):
        name = f"stopped at step {record['steps']}"
    found = record["accept_length"] or ()
    lengths = ", ".join(f"{m['accept_length']:.3f} at temperature {m['temperature']} (k {m['k']})" for m in found)
    return f"{name}: accept length {lengths or 'not measured'}"


_FORMS: dict[str, Callable[[Record], str]] = {
    "step": _step,
    "held out": _held_out,
    "answers": _answers,
    "start": _start,
    "before": _measured,
    "done": _measured,
}


def _list(values: Sequence[float]) -> str:
    return "/".join(f"{value:.2f}" for value in values)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
