"""Whether two machines hold the same checkpoint: a digest of its config, sizes and pieces of every file of weights.

Ranks that read different weights would agree on every token, since they gather what they choose from, and write
nonsense. Reading all of a terabyte to rule that out takes longer than loading it; other weights of the same shapes
differ nearly everywhere, and one piece that differs is enough.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from outpace.errors import CheckpointError
from outpace.models.fields import check_file

WEIGHTS = ("*.safetensors", "*.gguf", "*.bin")
PIECES, PIECE = 16, 1 << 16
"""Read of each file of weights, evenly over it, its two ends included; and bytes of one."""
_WHOLE = 4 * PIECES * PIECE
"""Files up to here are read whole."""


def digest_of(path: Path) -> str:
    """Of a checkpoint's directory or its one file.

    Raises:
        CheckpointError: a file cannot be read.
    """
    found = blake2b(digest_size=16)
    files = (
        [path] if path.is_file() else sorted({path / "config.json", *(f for kind in WEIGHTS for f in path.glob(kind))})
    )
    try:
        for file in files:
            size = check_file(file)
            found.update(f"{'' if file == path else file.name}\0{size}\0".encode(errors="surrogateescape"))
            with file.open("rb") as opened:
                for start in _starts(size):
                    opened.seek(start)
                    found.update(opened.read(size if size <= _WHOLE else PIECE))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from error
    return found.hexdigest()


def _starts(size: int) -> list[int]:
    if size <= _WHOLE:
        return [0]
    return [(size - PIECE) * piece // (PIECES - 1) for piece in range(PIECES)]
