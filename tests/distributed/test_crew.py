"""How the first rank parts from the others where nobody closed the LLM: `outpace generate` under torchrun."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack

from outpace.distributed.pipe import Pipe
from outpace.engine.ranks import orders
from outpace.engine.ranks.orders import Order

FIRST_RANK = """\
import socket, sys, time
from outpace.distributed.pipe import Pipe
from outpace.engine.ranks.crew import Crew

def slowly(send):
    def wait_behind(*arguments):
        send(*arguments)
        time.sleep(0.3)
    return wait_behind

Pipe.send = slowly(Pipe.send)
crew = Crew([socket.socket(fileno=int(number)) for number in sys.argv[1:]], [])
"""
NUM_OTHERS = 3


def test_every_rank_is_told_the_end_though_the_first_of_them_hang_up() -> None:
    """One that has heard it is gone before the last has: that is no rank that died, and the last is told all the same.
    Without a word it would end with an error, and torchrun would call the whole run failed."""
    with ExitStack() as sockets:
        pairs = [[sockets.enter_context(end) for end in socket.socketpair()] for _ in range(NUM_OTHERS)]
        numbers = [theirs.fileno() for theirs, _ in pairs]
        command = [sys.executable, "-c", FIRST_RANK, *map(str, numbers)]
        with subprocess.Popen(command, pass_fds=numbers, stderr=subprocess.PIPE) as first:
            for theirs, _ in pairs:
                theirs.close()
            for _, ours in pairs:
                pipe: Pipe[Order] = Pipe(ours, Order)
                assert isinstance(pipe.receive(), orders.End)
                pipe.close()
            assert first.stderr is not None
            assert first.wait(60) == 0 and not first.stderr.read()
