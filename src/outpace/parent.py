"""That a process ends with the one that started it, whatever either of them is doing at that moment."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Of `linux/prctl.h`."""
ORPHANED = 1
"""Exit status of a process whose parent was gone before it began."""


def end_with_parent(parent: int) -> None:
    """Has the kernel end this process when the thread that started it ends: one that hangs or is stopped would not.

    Ends it now if that was too late. Only Linux's kernel does so; elsewhere what a process waits on tells it.

    Args:
        parent: the process of that thread.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(ORPHANED)
