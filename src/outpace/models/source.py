"""From the name a user gives to files on this machine: an alias, a directory, a GGUF file or a hub id.

The alias comes first, then what exists here, then the hub; nothing is guessed further.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from outpace.errors import CheckpointError
from outpace.models import smollm2

TARGET_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")
"""What is fetched from the hub for a target: weights that cannot run code, settings, the tokenizer."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(/.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a model lies: a directory of safetensors or one GGUF file, and the name it was asked for by."""

    kind: Literal["directory", "gguf"]
    path: Path
    name: str


def locate(name: str, files: Sequence[str] = TARGET_FILES) -> Source:
    """Finds, and if need be fetches, what `name` stands for.

    Args:
        name: "smollm2", a directory, a .gguf file, or a hub id owner/name.
        files: which files of a hub repository are wanted, as globs.

    Raises:
        CheckpointError: there is no such model, or it cannot be fetched.
    """
    check_name(name)
    if name == smollm2.ALIAS:
        return Source(kind="gguf", path=smollm2.fetch(), name=name)
    path = Path(name).expanduser()
    if path.is_dir():
        return Source(kind="directory", path=path, name=name)
    if path.is_file():
        return Source(kind="gguf", path=path, name=name)
    return Source(kind="directory", path=_fetch(name, files), name=name)


def check_name(name: str) -> None:
    """That a name can stand for something, without fetching it.

    Raises:
        CheckpointError: it stands for nothing here, and the hub has no such names.
    """
    path = Path(name).expanduser()
    if name == smollm2.ALIAS or (name and path.is_dir()):
        return
    if path.is_file() and path.suffix.lower() != ".gguf":
        raise CheckpointError(f"{name} is a file, but not a .gguf; give the directory that holds the safetensors")
    if not path.is_file() and (not _HUB_ID.fullmatch(name) or path.suffix.lower() == ".gguf"):
        raise CheckpointError(
            f"there is no model {name!r}: it is neither {smollm2.ALIAS!r}, nor a directory or .gguf file here, "
            f"nor a hub id of the form owner/name{_hint(name)}"
        )


def _hint(name: str) -> str:
    return f"; a server is named by its URL, http://{name}" if _HOST_AND_PORT.fullmatch(name) else ""


def _fetch(name: str, files: Sequence[str]) -> Path:
    """Snapshot of a hub repository; what is cached is used, and is all there is when the hub is out of reach."""
    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"{name!r} is not on this machine and could not be fetched from the hub ({_first_line(error)}); check the "
            "name, the network, HF_HUB_OFFLINE and, for a gated model, HF_TOKEN, or give a directory"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
