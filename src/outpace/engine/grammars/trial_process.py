"""The trial process, started by `trials` and by nobody else.

A grammar is compiled here first, in a child that the kernel ends if it takes more than its time or memory. A child is
forked in milliseconds from a process that has one thread and has read the vocabulary already, and it leaves nothing
behind; another one waits for it and says how it ended, for not every end is the grammar's fault. The process ends with
its connection, over which come the vocabulary and then a socket for each grammar.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

import msgspec
from llguidance import LLTokenizer

from outpace.distributed.reading import exactly
from outpace.engine.grammars.notation import build, source_of
from outpace.engine.grammars.vocabulary import Vocabulary
from outpace.errors import RequestError
from outpace.grammar import Grammar
from outpace.streams import to_nowhere

CPU_S = 2.0
"""Of a core, for one grammar."""
WALL_S = 30.0
"""Where the machine has more to do than it can."""
MEMORY_MIB = 128
"""Beside what the process had before."""
PREFIX = 4
"""Bytes of a length before a message, most significant first."""
OUT_OF_TIME, OUT_OF_MEMORY = signal.SIGPROF, signal.SIGABRT
"""What ends a child that is above a limit of its own. The library aborts where it gets no memory."""
BY_ITSELF = (OUT_OF_TIME, OUT_OF_MEMORY, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Ends that another trial would come to as well. Others come from outside, as where the machine has no memory left."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a trial."""

    source: str = ""
    """The grammar in the library's notation, if it can be honoured."""
    error: str = ""
    """Else why not."""
    ended_by: int = 0
    """Else the signal that ended the trial."""


def main(descriptor: int) -> None:
    """Tries grammars until the other side hangs up."""
    with socket.socket(fileno=descriptor) as control:
        try:
            size = int.from_bytes(exactly(control, PREFIX), "big")
            vocabulary = msgspec.msgpack.decode(exactly(control, size), type=Vocabulary)
        except ConnectionError:
            return
        index = vocabulary.indexed()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps children
        gc.freeze()
        while descriptors := socket.recv_fds(control, 1, 1)[1]:
            with socket.socket(fileno=descriptors[0]) as asked:
                try:
                    is_child = os.fork() == 0
                except OSError as error:
                    _say_forkless(error)
                    continue
                if is_child:
                    _watch(asked, index, vocabulary.num_ids)


def _watch(asked: socket.socket, index: LLTokenizer, num_ids: int) -> NoReturn:
    """In a child: has a grammar tried in one of its own, and tells how that ended if it could not do so itself."""
    try:
        os.setpgid(0, 0)  # with its group the process would end trials that have begun
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ours, theirs = socket.socketpair()
        child = os.fork()
        if not child:
            _try(asked, theirs, index, num_ids)
        theirs.close()
        said, status = _all(ours), os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            said = msgspec.msgpack.encode(Verdict(ended_by=os.WTERMSIG(status)))
        asked.sendall(said)
    except OSError as error:  # or nobody wants to know any more
        _say_forkless(error)
    finally:
        os._exit(0)


def _say_forkless(error: OSError) -> None:
    """Nothing is said to the one who asked, which is no verdict."""
    print(f"outpace: no process could be started to try a grammar in: {error}", file=sys.stderr)


def _try(asked: socket.socket, told: socket.socket, index: LLTokenizer, num_ids: int) -> NoReturn:
    """In its child: reads a grammar, says what came of it, and ends."""
    try:
        _bound()
        grammar = msgspec.msgpack.decode(_all(asked), type=Grammar)
        try:
            source = source_of(grammar)
            build(index, source, num_ids)
            verdict = Verdict(source=source)
        except MemoryError:
            os.abort()
        except RequestError as error:
            verdict = Verdict(error=str(error))
        except Exception as error:  # whatever the library raises, it is of this grammar
            verdict = Verdict(error=f"grammar: {error!r:.500}")
        told.sendall(msgspec.msgpack.encode(verdict))
    finally:
        os._exit(0)


def _bound() -> None:
    """What is above these limits ends this process. It also lets others go first, and is quiet."""
    to_nowhere(2)
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = now + (MEMORY_MIB << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    signal.setitimer(signal.ITIMER_REAL, WALL_S)


def _all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))
