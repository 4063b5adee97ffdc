"""What becomes of a standard stream that leads nowhere any more."""

from __future__ import annotations

import os


def to_nowhere(descriptor: int) -> None:
    """What is still written there is lost, and is no error: whoever read it is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
