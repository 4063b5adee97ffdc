"""What a command is to measure, checked before anything is started or written down for later."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from outpace.lab.bench.subject import Subject, pinned, subject_of


def checked(named: str) -> Subject:
    """The subject, its commit by its full id. Options of a model are those of this version's `outpace serve`; those of
    another commit's nobody knows here.

    Raises:
        ConfigError: there is no such commit or option, or an option's value is out of its range.
        CheckpointError: there can be no such model.
    """
    subject = pinned(subject_of(named))
    if subject.model is not None and subject.commit is None:
        serve: Any = import_module("outpace.cli.serve")  # it brings a server, which a URL does without
        serve.check_words(subject.model, subject.flags)
    return subject
