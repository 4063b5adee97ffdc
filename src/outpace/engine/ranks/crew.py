"""The other ranks as the first one sees them: started, told what to do, watched, and ended.

A rank that dies ends the group: its connection breaks, or nothing comes over it any more; what waits for it in a
collective is aborted, and whatever the first rank does next raises an `EngineError` that says which rank died and how.
The others end with their connections.
"""

from __future__ import annotations

import socket
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import NoReturn, TypeVar, cast

import msgspec

from outpace.distributed import rendezvous
from outpace.distributed.pipe import Pipe, PipeClosed
from outpace.distributed.workers import Worker, end
from outpace.engine.ranks import orders
from outpace.engine.ranks.checksum import Comparison
from outpace.engine.ranks.failures import Failures, is_fatal
from outpace.engine.ranks.likeness import unlike_versions, versions
from outpace.engine.ranks.orders import Answer, Order
from outpace.engine.ranks.release import Release
from outpace.engine.ranks.whereabouts import Progress, Whereabouts
from outpace.errors import EngineError
from outpace.wording import count_of

SECONDS_TO_NOTICE = 5.0
"""How long an error of our own is held back for a rank's death to be seen, which would explain it."""
SECONDS_TO_EXPLAIN = 2.0
"""How long what a rank says is held back: a rank that died without a word would explain it."""
SECONDS_OF_SILENCE = 120.0
"""How long a rank may say nothing: it has a beat of its own, whatever else it does, once Python runs in it."""
SECONDS_TO_GET_ON = 300.0
"""How long a rank that is waited for may be at one thing: a large tensor may come from a slow disk."""
_LOOK_S = 0.2

Kind = TypeVar("Kind", bound=msgspec.Struct)
Value = TypeVar("Value")


class Crew:
    """Ranks 1 … size - 1.

    Args:
        connections: to each of them, in order.
        workers: their processes, if this one started them.
    """

    def __init__(self, connections: Sequence[socket.socket], workers: Sequence[Worker]) -> None:
        pipes: list[Pipe[Answer]] = [Pipe(connection, Answer, SECONDS_OF_SILENCE) for connection in connections]
        self._pipes, self._workers = pipes, workers
        self.release = Release()
        """What is set free when the group ends."""
        self._answers: tuple[SimpleQueue[Answer], ...] = tuple(SimpleQueue() for _ in pipes)
        self._comparison = Comparison(len(pipes))
        self._lock = Lock()
        self._error: EngineError | None = None
        self._failed = Event()
        self._ending = Event()
        """That ranks hang up from here on is as it should be."""
        self.progress = Progress()
        """This rank's own."""
        self.whereabouts = Whereabouts(self.progress.beat)
        self._failures = Failures(len(pipes), self._place, self._failed)
        for rank in range(1, 1 + len(pipes)):
            Thread(target=self._watch, args=(rank,), name=f"rank {rank}", daemon=True).start()
        self._end = weakref.finalize(self, _end, pipes, workers, self._ending)

    @classmethod
    def start(cls, num_others: int, settings: dict[str, str]) -> Crew:
        """Starts processes on this machine, with these environment variables, and waits until Python runs in them.

        Raises:
            EngineError: one did not come up.
        """
        workers = [Worker("outpace.engine.ranks.follower", settings, grouped=True) for _ in range(num_others)]
        return cls([worker.connection for worker in workers], workers).complete()

    def complete(self) -> Crew:
        """This crew, once Python runs in all of its processes.

        Raises:
            EngineError: one did not come up, or runs other versions; all have ended.
        """
        try:
            if unlike := unlike_versions([versions(), *(here.versions for here in self.hear(orders.Here))]):
                self.fail(*unlike)
        except BaseException:
            self.close()  # nobody else has it yet
            raise
        return self

    def fail(self, rank: int, why: str) -> NoReturn:
        """Ends the group.

        Raises:
            EngineError: always.
        """
        self._fail(rank, why)
        assert self._error is not None
        raise self._error

    def close(self) -> None:
        """Ends the other ranks' processes; at the latest that happens when this process ends."""
        with self._lock:
            if self._error is None:
                self._error = EngineError("this LLM was closed: make a new one")
        self._end()

    def tell(self, order: Order | Sequence[Order]) -> None:
        """Sends an order to every rank, or each its own.

        Raises:
            EngineError: a rank died.
        """
        self.check()
        each = order if isinstance(order, Sequence) else [order] * len(self._pipes)
        for rank, (pipe, message) in enumerate(zip(self._pipes, each, strict=True), start=1):
            try:
                pipe.send(message)
            except PipeClosed as error:
                self._failed.wait(SECONDS_TO_NOTICE)
                self._fail(rank, str(error))
        self.check()

    def hear(self, kind: type[Kind]) -> list[Kind]:
        """One answer of every rank, in order; waits for them as long as they get on.

        Raises:
            EngineError: a rank died, or hangs.
        """
        found: list[Kind] = []
        waited = 0.0
        for rank, answers in enumerate(self._answers, start=1):
            while True:
                self.check()
                with suppress(Empty):
                    answer = answers.get(timeout=_LOOK_S)
                    break
                waited += _LOOK_S
                self._check_gets_on(rank, waited)
            if not isinstance(answer, kind):
                self.fail(rank, f"it said {type(answer).__name__} where {kind.__name__} was due")
            found.append(cast(Kind, answer))
        return found

    def watched(self, call: Callable[[], Value]) -> Value:
        """Calls what waits for other ranks, and stops waiting if one dies.

        Raises:
            EngineError: a rank died.
        """
        outcome: SimpleQueue[Value | BaseException] = SimpleQueue()

        def run() -> None:
            try:
                outcome.put(call())
            except BaseException as error:
                outcome.put(error)

        Thread(target=run, name="waits for ranks", daemon=True).start()
        while True:
            self.check()
            with suppress(Empty):
                value = outcome.get(timeout=_LOOK_S)
                break
        if isinstance(value, BaseException):
            raise self._explained(value) from value
        return value

    def _check_gets_on(self, rank: int, waited: float) -> None:
        """Ends the group if a rank hangs that was waited for; counted in looks, as a pause of this process is none of
        the other's."""
        still = min(self.whereabouts.still(rank), waited)
        if still >= SECONDS_TO_GET_ON:
            where = self.whereabouts.of_all()
            self.fail(
                rank,
                f"it was waited for and did not get on for {still:.0f} s ({where}): see whether the model's disk and "
                "its device answer there",
            )

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Around what other ranks do too: where it raises here alone, ranks can never be brought together again.

        Raises:
            EngineError: a rank died, or this one raised.
        """
        try:
            yield
        except Exception as error:
            if error is self._error:
                raise
            raise self._explained(error) from error
        except BaseException:
            self._fail(0, "it was interrupted in the middle of a forward")
            raise

    @contextmanager
    def in_forward(self) -> Iterator[None]:
        """As `in_step`, but what a forward raises on all ranks at the same place is raised as it is, and they go on.

        Raises:
            EngineError: a rank died, or ranks did not raise alike.
        """
        self.progress.num_forwards += 1
        failed: Exception | None = None
        with self.in_step():
            try:
                yield
            except Exception as error:
                if is_fatal(error, self.progress.calls):
                    raise
                if why := self._failures.why_alone():
                    raise self._explained(error, f"; {why}") from error
                failed = error
        if failed is not None:
            self.tell(orders.GoOn())
            raise failed

    def _place(self) -> tuple[int, int]:
        """Where this rank stands: see `failures`."""
        return self.progress.num_forwards, self.progress.calls.begun

    def _explained(self, error: BaseException, more: str = "") -> EngineError:
        if not self._failed.wait(0.0 if more else SECONDS_TO_NOTICE):
            more = more or f"; {self.whereabouts.of_all()}"
            self._fail(0, f"it raised {type(error).__name__}: {error}{more}")
        assert self._error is not None
        return self._error

    def compare(self, num_forwards: int, checksum: int) -> None:
        """Checks the tokens of this rank's first so many forwards against those of the others, as far as they came.

        Raises:
            EngineError: they differ.
        """
        for rank in self._comparison.add_own(num_forwards, checksum):
            self._fail_apart(rank, num_forwards)
        self.check()

    def check(self) -> None:
        """Raises EngineError if the group has ended."""
        if self._error is not None:
            raise self._error

    def _watch(self, rank: int) -> None:
        pipe, answers = self._pipes[rank - 1], self._answers[rank - 1]
        try:
            while True:
                match answer := pipe.receive():
                    case orders.Beat():
                        self.whereabouts.note(rank, answer)
                    case orders.Checked():
                        if self._comparison.differs(rank, answer.num_forwards, answer.checksum):
                            self._fail_apart(rank, answer.num_forwards)
                    case orders.Raised():
                        if why := self._failures.weigh(rank, answer):
                            self._fail(rank, why)
                    case orders.Failed(message=message):
                        self._failed.wait(SECONDS_TO_EXPLAIN)
                        self._fail(rank, message)
                    case _:
                        answers.put(answer)
        except PipeClosed as error:
            ended = self._workers[rank - 1].how_it_ended() if self._workers else None
            last = self.whereabouts.of(rank)
            self._fail(rank, f"its process {ended}" if ended else f"{error}{f' ({last})' if last else ''}")
            if self._workers:
                self._workers[rank - 1].kill()  # one that hangs would hold others in a collective

    def _fail_apart(self, rank: int, num_forwards: int) -> None:
        self._fail(rank, f"it chose other tokens than rank 0 within its first {count_of(num_forwards, 'forward')}")

    def _fail(self, rank: int, why: str) -> None:
        """The first reason counts. Whatever waits for the rank is set free."""
        with self._lock:
            if self._error is not None:
                return
            if self._ending.is_set():
                self._error = EngineError("Python ends, and this LLM with it")
                return
            pid = f" (process {self._workers[rank - 1].pid})" if rank and self._workers else ""
            self._error = EngineError(
                f"tensor-parallel rank {rank}{pid} failed: {why}; the group of {1 + len(self._pipes)} ranks has ended: "
                "make a new LLM"
            )
        self._failed.set()
        for pipe in self._pipes:
            pipe.close()  # the others end; what they would have said is of no use
        self.release.begin(self._error)


def _end(pipes: Sequence[Pipe[Answer]], workers: Sequence[Worker], ending: Event) -> None:
    ending.set()  # at the end of Python nobody has called `close`: the first that hangs up would be taken for dead
    for pipe in pipes:
        with suppress(PipeClosed):  # who has failed hears nothing
            pipe.send(orders.End())
    for pipe in pipes:
        pipe.close()
    end(workers)
    rendezvous.leave()
