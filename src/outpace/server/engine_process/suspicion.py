"""Which request makes the engine raise.

A step that raises is done again, since the engine rebuilds itself from its tokens. Where it raises again before every
request got further, the youngest request stands aside, then the next, until all that are left get further: the one
that stood aside last is the culprit. The youngest goes first because the others have run without it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

import torch

from outpace.errors import EngineError

MAX_IN_A_ROW = 2
"""Culprits after one another with nothing said between them: then it is the engine."""
Item = TypeVar("Item")


class Suspicion(Generic[Item]):
    """What is known of the step that raised. Ids are requests'."""

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._waiting_for: set[int] = set()
        """Requests that have not got further since the last error."""
        self._benched: dict[int, Item] = {}
        """Those that stand aside, the youngest first."""
        self._gone: set[int] = set()
        """Benched, and aborted since."""
        self._in_a_row = 0

    @property
    def seeking(self) -> bool:
        """An error is not explained yet."""
        return self._error is not None

    def after(self, error: Exception, running: Sequence[int]) -> int | None:
        """What to do about an error: the request that should stand aside, or None to try the same again.

        Args:
            error: what the step raised.
            running: ids, oldest first.

        Raises:
            EngineError: the engine is broken, not a request.
        """
        is_the_engines = isinstance(error, torch.AcceleratorError | EngineError)
        if is_the_engines or not running or self._in_a_row >= MAX_IN_A_ROW:
            raise EngineError(f"the engine is broken: {type(error).__name__}: {error}") from error
        again = self._error is not None
        self._error = error
        self._waiting_for = set(running)
        if not again:
            return None
        self._waiting_for.discard(running[-1])
        return running[-1]

    def bench(self, request_id: int, item: Item) -> None:
        """A request stands aside; `item` is what brings it back."""
        self._benched[request_id] = item

    def forget(self, request_id: int) -> None:
        """A request was aborted: it does not come back, but may still be the one that explains the error."""
        self._waiting_for.discard(request_id)
        if self.seeking:
            self._gone.add(request_id)

    def saw_progress(self, request_id: int) -> None:
        """A request got further."""
        self._waiting_for.discard(request_id)
        self._in_a_row = 0

    def settled(self, running: Collection[int]) -> bool:
        """Whether there is a verdict. Where nobody had to stand aside, the error is over and done with."""
        if self._error is None or (running and self._waiting_for):
            return False
        if not self._benched:
            self._error, self._gone = None, set()
            return False
        return True

    def verdict(self) -> tuple[str, int | None, list[Item]]:
        """Why, the culprit's id, and those that come back, oldest first.

        The last that stood aside is it, unless one that was running then has left meanwhile: that one may have been it,
        and nobody is found guilty. If it was not, the next error says so.
        """
        culprit = None if self._gone - self._benched.keys() else self._benched.popitem()[0]
        innocent = [item for i, item in reversed(self._benched.items()) if i not in self._gone]
        message = f"the engine failed on this request: {type(self._error).__name__}: {self._error}"[:2000]
        self._error, self._benched, self._gone, self._waiting_for = None, {}, set(), set()
        self._in_a_row += 1
        return message, culprit, innocent
