"""The first rank's runner: says to the other ranks what it is about to do, then does it.

Whatever changes the device state goes through here, so that all ranks go through the same states. Nothing comes back
but the sign that a rank is alive and, now and then, a checksum of the tokens that it chose.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from outpace.config import ResolvedConfig
from outpace.engine.frames import Shape
from outpace.engine.grammars.masks import Masks
from outpace.engine.prefill_frames import PrefillShape
from outpace.engine.ranks import orders
from outpace.engine.ranks.checksum import Checksum
from outpace.engine.ranks.crew import Crew
from outpace.engine.runner import Runner
from outpace.engine.ticket import Ticket
from outpace.speculation.pair import Pair
from outpace.types import Outcome, Plan


@dataclass(frozen=True, slots=True)
class SharedTicket(Ticket):
    """A ticket that is worth nothing if a rank died meanwhile."""

    crew: Crew

    def read(self) -> Outcome:
        """Waits for the forward.

        Raises:
            EngineError: a rank died.
        """
        outcome = Ticket.read(self)
        self.crew.check()
        return outcome


class Leader(Runner):
    """Runs plans on all ranks.

    Args:
        pair: this rank's share of the models, and its pages.
        config: settings, which the others have been told.
        crew: the other ranks.
    """

    def __init__(self, pair: Pair, config: ResolvedConfig, crew: Crew) -> None:
        super().__init__(pair, config)
        self._crew = crew
        self._checksum = Checksum(self.num_ahead)

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """See `Runner.rehearsing`. The other ranks compile meanwhile, each by itself and as long as it takes."""
        self._crew.tell(orders.Compile())
        with super().rehearsing():
            yield

    def enqueue(self, plan: Plan, masks: Masks | None = None) -> Ticket:
        """Starts one forward on every rank; masks are made here and broadcast.

        Raises:
            EngineError: a rank died, ranks chose different tokens, or some of them raised.
            Exception: what the forward raised on all ranks alike; they can go on.
        """
        if self.target.group.rehearsal.on:
            return super().enqueue(plan, masks)
        order = orders.order_of(plan, masked=masks is not None)
        self._crew.tell(order)
        self._crew.progress.begin(f"at {type(order).__name__}")
        with self._crew.in_forward():
            ticket = super().enqueue(plan, masks)
        with self._crew.in_step():
            self._crew.release.last = ticket.done
            seen = self._checksum.add(ticket)
        if seen is not None:
            self._crew.compare(*seen)
        return SharedTicket(**{field.name: getattr(ticket, field.name) for field in fields(ticket)}, crew=self._crew)

    def make_extras(self) -> bool:
        """See `Runner.make_extras`: on all ranks, or on none."""
        self._crew.tell(orders.Provide())
        with self._crew.in_step():
            done = [super().make_extras(), *(other.done for other in self._crew.hear(orders.Provided))]
        if all(done):
            return True
        self.withdraw()
        return False

    def withdraw(self) -> None:
        """See `Runner.withdraw`."""
        self._crew.tell(orders.Withdraw())
        super().withdraw()

    def occupy(self, num_rows: int, columns: int) -> None:
        """See `Runner.occupy`."""
        self._crew.tell(orders.Occupy(num_rows=num_rows, columns=columns))
        super().occupy(num_rows, columns)

    def put_back(self, num_rows: int, context: int) -> None:
        """See `Runner.put_back`."""
        self._crew.tell(orders.PutBack(num_rows=num_rows, context=context))
        super().put_back(num_rows, context)

    def vacate(self, num_rows: int) -> None:
        """See `Runner.vacate`."""
        self._crew.tell(orders.Vacate(num_rows=num_rows))
        super().vacate(num_rows)

    def capture(self, shape: Shape | PrefillShape) -> None:
        """See `Runner.capture`."""
        self._crew.tell(orders.capture_of(shape))
        with self._crew.in_step():
            super().capture(shape)

    @contextmanager
    def with_phases(self) -> Iterator[None]:
        """See `Runner.with_phases`."""
        self._crew.tell(orders.TimePhases(on=True))
        try:
            with super().with_phases():
                yield
        finally:
            self._crew.tell(orders.TimePhases(on=False))
