"""The directory of experiments: `2026-11-30-name/` with `experiment.json`, `experiment.md` and, once it was run,
`compare.json`; `index.md` lists them. Nothing that was measured is ever overwritten."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from outpace.errors import ConfigError
from outpace.lab.experiments import page
from outpace.lab.experiments.record import SCHEMA, Experiment, Outcome
from outpace.lab.paired.record import CompareRecord
from outpace.lab.written import to_json
from outpace.wording import reason

FILE, PAGE, RECORD, INDEX = "experiment.json", "experiment.md", "compare.json", "index.md"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
MOST_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Kept:
    """What a directory holds, in the order of dates."""

    found: list[tuple[Path, Experiment]] = field(default_factory=list)
    broken: dict[Path, str] = field(default_factory=dict)
    """Folders whose record cannot be read, and why."""


class Store:
    """All experiments of one directory. One whose record is broken does not keep the others from use.

    Args:
        root: is made when the first experiment is.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def new(self, experiment: Experiment) -> Path:
        """Writes one that has not been run; returns its folder.

        Raises:
            ConfigError: its name or texts are out of bounds, there is one of that name, or it cannot be written.
        """
        if not NAME.fullmatch(experiment.name):
            raise ConfigError(
                f"{experiment.name!r} is no name for an experiment; use 1 … 64 small letters, digits and dashes"
            )
        for name in ("hypothesis", "change"):
            length = len(getattr(experiment, name).strip())
            if not 1 <= length <= MOST_CHARACTERS:
                raise ConfigError(f"{name} has {length} characters; write 1 … {MOST_CHARACTERS:,}")
        kept = self.all()
        if experiment.name in (*(found.name for _, found in kept.found), *map(_name_of, kept.broken)):
            raise ConfigError(f"{self.root} has an experiment {experiment.name!r}; give this one another name")
        folder = self.root / f"{experiment.created_at[:10]}-{experiment.name}"
        with _writing(folder):
            folder.mkdir(parents=True)
        self._write(folder, experiment)
        return folder

    def find(self, name: str) -> tuple[Path, Experiment]:
        """By its name, or by its folder's.

        Raises:
            ConfigError: there is none, or it cannot be read.
        """
        kept = self.all()
        for folder, experiment in kept.found:
            if name in (experiment.name, folder.name):
                return folder, experiment
        for folder, why in kept.broken.items():
            if name in (_name_of(folder), folder.name):
                raise ConfigError(why)
        names = ", ".join((*(found.name for _, found in kept.found), *map(_name_of, kept.broken))) or "none yet"
        raise ConfigError(f"{self.root} has no experiment {name!r}; there are {names}")

    def all(self) -> Kept:
        """All of them, those that cannot be read too."""
        kept = Kept()
        for path in sorted(self.root.glob(f"*/{FILE}")):
            try:
                kept.found.append((path.parent, _read(path)))
            except ConfigError as error:
                kept.broken[path.parent] = str(error)
        return kept

    def check_unfinished(self, folder: Path, experiment: Experiment) -> None:
        """Raises ConfigError if it was run before."""
        if experiment.outcome is not None or (folder / RECORD).exists():
            raise ConfigError(
                f"{experiment.name} has a result already, and results are not overwritten; make a new experiment for "
                "another run"
            )

    def keep(self, folder: Path, experiment: Experiment, record: CompareRecord) -> None:
        """Keeps what was measured.

        Raises:
            ConfigError: it has a result already, or it cannot be written.
        """
        self.check_unfinished(folder, experiment)
        with _writing(folder), (folder / RECORD).open("x", encoding="utf-8") as out:
            out.write(to_json(record) + "\n")

    def finish(self, folder: Path, experiment: Experiment, outcome: Outcome) -> Experiment:
        """Keeps what that came to.

        Raises:
            ConfigError: it cannot be written.
        """
        done = replace(experiment, outcome=outcome)
        self._write(folder, done)
        return done

    def _write(self, folder: Path, experiment: Experiment) -> None:
        with _writing(folder):
            _replace(folder / FILE, msgspec.json.format(msgspec.json.encode(experiment), indent=1).decode() + "\n")
            _replace(folder / PAGE, "\n".join(page.markdown(experiment)) + "\n")
            kept = self.all()
            _replace(self.root / INDEX, "\n".join(page.index(kept.found, list(kept.broken.values()))) + "\n")


def now() -> str:
    """UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _name_of(folder: Path) -> str:
    """Of an experiment, by its folder's name: what follows the date."""
    return folder.name[11:]


def _read(path: Path) -> Experiment:
    try:
        text = path.read_bytes()
        schema = msgspec.json.decode(text).get("schema")
        if schema != SCHEMA:
            raise ConfigError(f"{path} has schema {schema!r}; this version reads {SCHEMA}")
        return msgspec.json.decode(text, type=Experiment)
    except (OSError, AttributeError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}; mend it, or move its folder away") from error


def _replace(path: Path, text: str) -> None:
    """A file is whole or as it was."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}; name another --directory") from None
