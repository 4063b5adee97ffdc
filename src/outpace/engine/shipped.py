"""The drafters that come with the package, by the model they were trained for."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent.parent / "drafters"


def shipped_drafter(model: str) -> str | None:
    """Directory of the drafter shipped for a model's alias, or None; a path to a model is no alias."""
    aliases = {path.parent.name: path.parent for path in _FOLDER.glob("*/config.json")}
    return str(aliases[model]) if model in aliases else None
