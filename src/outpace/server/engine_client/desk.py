"""Answers under way: those in the engine, and those that wait outside until there is room.

What waits here was never sent. So when an engine process dies, what it had been sent fails, since it may have been
begun and may be the cause; what still waits goes to the next process as if nothing had happened.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from time import monotonic

from outpace.errors import OutpaceError, RequestError
from outpace.server.engine_client.jobs import Begun, BrokenRequest, Job, QueueFull, Submission, Unavailable, Wanted
from outpace.server.engine_client.totals import Totals
from outpace.server.wire import Abort, Aborted, Accepted, Broken, Piece, Refused, Submit, ToEngine, Untried, WireError
from outpace.wording import count_of

Send = Callable[[ToEngine], None]
MOST_SECONDS = 60
"""Longest time after which a refused client is told to try again."""


class Desk:
    """Queues, sends and ends answers.

    Args:
        queue_limit: most answers that wait.
    """

    def __init__(self, queue_limit: int) -> None:
        self.totals = Totals()
        self.slots = 0
        """Most answers in the engine at once."""
        self._send: Send | None = None
        """None while no engine takes anything."""
        self._queue_limit = queue_limit
        self._waiting: OrderedDict[int, Job] = OrderedDict()
        self._sent: dict[int, Job] = {}
        self._leaving: set[int] = set()
        """Aborted, which the engine has not heard yet. They keep their places: clients that come and go while it hears
        nothing would otherwise pile up before it, and nobody would see that it hangs."""
        self._ids = count()
        self._job_seconds = 1.0
        """A smoothed time from sending an answer to its end."""

    @property
    def num_running(self) -> int:
        return len(self._sent) + len(self._leaving)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def open(self, slots: int, send: Send) -> None:
        """An engine is ready for so many answers at once."""
        self.slots, self._send = slots, send
        self._fill()

    def close(self, error: OutpaceError) -> None:
        """The engine is gone: what it had been sent ends with this error."""
        self._send = None
        self._leaving.clear()
        for job in list(self._sent.values()):
            self._fail(job, error)

    def fail_all(self, error: OutpaceError) -> None:
        """Ends every answer with this error."""
        for job in [*self._waiting.values(), *self._sent.values()]:
            self.abort(job)
            job.put(job, error)

    def submit(self, wanted: Sequence[Wanted], seconds: float, kept: tuple[str, ...] = ()) -> Submission:
        """Queues answers, which have so many seconds and show these special tokens.

        Raises:
            QueueFull: so many do not fit the queue.
        """
        free = 0 if self._send is None else self.slots - self.num_running
        if len(self._waiting) + len(wanted) > self._queue_limit + free:
            raise QueueFull(
                f"{count_of(len(self._waiting), 'answer')} in the queue and {len(wanted)} more asked for; at most "
                f"{self._queue_limit} may wait: try again later, or ask for fewer at once",
                self._retry_after(),
            )
        deadline = asyncio.get_running_loop().time() + seconds
        submission = Submission(wanted, [next(self._ids) for _ in wanted], deadline, self.abort, kept)
        self._waiting.update((job.id, job) for job in submission.jobs)
        self._fill()
        return submission

    def abort(self, job: Job) -> None:
        """Ends an answer; nothing happens if it has ended."""
        if job.state == "sent" and self._send is not None:
            self._send(Abort(id=job.id))
            self._leaving.add(job.id)
        self._end(job)

    def hear(self, message: Accepted | Piece | Refused | Untried | Broken | Aborted) -> None:
        """What the engine says of an answer, unless that was aborted meanwhile."""
        if isinstance(message, Aborted):
            self._leaving.discard(message.id)
            self._fill()
            return
        job = self._sent.get(message.id)
        if job is None:
            return
        match message:
            case Accepted():
                job.put(job, Begun())
            case Refused(message=why):
                self._fail(job, RequestError(why))
            case Untried(message=why):
                self.totals.untried += 1
                self._fail(job, Unavailable(why, "grammar_untried"))
            case Broken(message=why):
                self._fail(job, BrokenRequest(why))
            case Piece():
                self._hear_piece(job, message)

    def _hear_piece(self, job: Job, piece: Piece) -> None:
        self.totals.add(job, piece)
        job.num_tokens += len(piece.token_ids)
        job.tally = piece.tally
        if piece.finish_reason is not None:
            self._job_seconds += 0.2 * (monotonic() - job.since - self._job_seconds)
            self._end(job)
        job.put(job, piece)

    def _fill(self) -> None:
        """Sends what waits, as far as there is room."""
        while self._send is not None and self._waiting and self.num_running < self.slots:
            _, job = self._waiting.popitem(last=False)
            job.since = monotonic()  # before the engine is woken, which may take this process's core
            try:
                self._send(Submit(id=job.id, prompt_ids=job.prompt_ids, params=job.params, kept=job.kept))
            except WireError as error:
                self._fail(job, RequestError(f"the request cannot be handed to the engine: {error}"))
                continue
            job.let_go()
            job.state = "sent"
            self._sent[job.id] = job

    def _fail(self, job: Job, error: OutpaceError) -> None:
        self._end(job)
        job.put(job, error)

    def _end(self, job: Job) -> None:
        job.state = "done"
        self._waiting.pop(job.id, None)
        if self._sent.pop(job.id, None) is not None:
            self._fill()

    def _retry_after(self) -> int:
        """Seconds until the queue has moved on, by what answers took lately."""
        return max(1, min(MOST_SECONDS, round(self._job_seconds * (1 + len(self._waiting) / max(1, self.slots)))))
