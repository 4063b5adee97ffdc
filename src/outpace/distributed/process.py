"""Where a process begins that works for another: `python -m outpace.distributed.process MODULE FD PARENT`.

It is bound to its parent before it imports anything that takes long, and then runs the module's `main` with the
descriptor of the socket that it inherited.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module

from outpace.parent import end_with_parent


def command(module: str, descriptor: int) -> list[str]:
    """The command line of such a process, whose parent is this one."""
    return [sys.executable, "-m", "outpace.distributed.process", module, str(descriptor), str(os.getpid())]


def main(module: str, descriptor: int, parent: int) -> None:
    """Becomes what it was started for."""
    end_with_parent(parent)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # in a group of its own, a word on the terminal could stop it
    import_module(module).main(descriptor)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
