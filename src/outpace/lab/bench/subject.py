"""What is measured, as it is named on the command line: a URL, or a model that a server of ours is started for.

http://localhost:30000
smollm2
"./model --drafter ./drafter --k 4"     with options of `outpace serve`
"@1a2b3c4 smollm2 --k 4"                with the code of that commit
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from outpace.errors import ConfigError
from outpace.lab.bench.own_server import checkout, full_commit, own_server


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A server that runs somewhere, or one to be started here."""

    label: str
    """As it was named."""
    url: str | None = None
    model: str | None = None
    flags: tuple[str, ...] = ()
    commit: str | None = None


def subject_of(named: str) -> Subject:
    """Reads the forms above.

    Raises:
        ConfigError: nothing is named, or a URL has something behind it.
    """
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise ConfigError(f"{named!r} cannot be read: {error}; quote it as a shell would") from error
    if words and words[0].startswith(("http://", "https://")):
        if len(words) > 1:
            raise ConfigError(f"{named!r} gives options to a server that runs already; they belong to its own start")
        return Subject(label=named, url=words[0])
    if words and "://" in words[0]:
        raise ConfigError(f"{words[0]!r} is no http URL; give one such as http://localhost:8000, or a model")
    commit = words.pop(0)[1:] if words and words[0].startswith("@") else None
    if not words or not words[0] or words[0].startswith("-") or commit == "":
        raise ConfigError(f"{named!r} names no model; write a URL, a model, or '@COMMIT MODEL --options'")
    return Subject(label=named, model=words[0], flags=tuple(words[1:]), commit=commit)


def pinned(subject: Subject) -> Subject:
    """With its commit's full id: what a branch's name means changes.

    Raises:
        ConfigError: there is no such commit.
    """
    return subject if subject.commit is None else replace(subject, commit=full_commit(subject.commit))


@contextmanager
def running(subject: Subject) -> Iterator[str]:
    """Its URL, while it runs.

    Raises:
        ConfigError: there is no such commit.
        EngineError: its server does not start.
    """
    if subject.url is not None:
        yield subject.url
        return
    assert subject.model is not None
    with ExitStack() as stack:
        source = None if subject.commit is None else stack.enter_context(checkout(subject.commit))[0]
        yield stack.enter_context(own_server(subject.model, subject.flags, source=source))
