"""The scheduler: which rows the next forward takes, and who gets pages. Host data only; it never sees the device.

Prefill and cycles take turns while both have work, so that a long prompt does not silence the others. When pages run
out the youngest sequence gives its own back and starts over later from its tokens: its answer does not change, since
noise depends on seed and position alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from outpace.config import EngineConfig
from outpace.engine.pages import Pages
from outpace.engine.sequence import Sequence
from outpace.types import Changes, Plan, RowSettings


class Scheduler:
    """Plans forwards over the sequences it was given.

    Args:
        config: rows, prefill chunk and k are taken from it.
        pages: the pages to hand out.
        draftable: drafts that fit behind a length before the drafter's position limit.
    """

    def __init__(self, config: EngineConfig, pages: Pages, draftable: Callable[[int], int]) -> None:
        self._config = config
        self._pages = pages
        self._draftable = draftable
        self._waiting: deque[Sequence] = deque()
        self._admitted: dict[int, Sequence] = {}
        """By request id, oldest first."""
        self._free_rows = list(range(config.max_rows - 1, -1, -1))
        self._prefilled_last = False
        self._changes: list[RowSettings] = []
        self._new_pages: list[tuple[int, int, int]] = []
        self.num_preempted = 0

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._admitted)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence behind the others."""
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Takes a finished or aborted sequence out, wherever it is, and lets its pages go."""
        if sequence.row < 0:
            self._waiting.remove(sequence)
        else:
            self._vacate(sequence)

    def restart(self) -> None:
        """After a forward that failed: nobody knows what the device holds, so all start over from their tokens."""
        for sequence in reversed(list(self._admitted.values())):
            self._vacate(sequence, remember=False)
            self._waiting.appendleft(sequence)
        self._flush()

    def next(self) -> tuple[Plan, list[Sequence]]:
        """The next forward and the sequences in its rows, in the same order. Only while `busy`."""
        self._admit()
        prefilling = [s for s in self._admitted.values() if not s.primed]
        running = [s for s in self._admitted.values() if s.primed]
        if prefilling and not (running and self._prefilled_last):
            self._prefilled_last = True
            return self._plan_prefill(prefilling)
        self._prefilled_last = False
        planned = self._plan_cycle(running)
        return planned if planned is not None else self.next()

    def _admit(self) -> None:
        """Lets sequences in while there are rows, and pages for them and one more for each that is in already.

        Without that reserve a preempted sequence would come back at once, only to be preempted again.
        """
        while self._waiting and self._free_rows:
            sequence = self._waiting[0]
            reused = self._pages.match(sequence.tokens, needs_drafter=sequence.max_k > 0)
            missing = self._num_pages(len(sequence.tokens)) - len(reused)
            taken = self._pages.take(missing + len(self._admitted))
            if taken is None:
                self._pages.release(reused)
                return
            self._pages.release(taken[missing:])
            del taken[missing:]
            self._waiting.popleft()
            self._admitted[sequence.request.id] = sequence
            self._settle(sequence, reused, taken)

    def _settle(self, sequence: Sequence, reused: list[int], taken: list[int]) -> None:
        sequence.row = self._free_rows.pop()
        sequence.num_cached = len(reused) * self._pages.page_size
        sequence.num_drafter = sequence.num_cached if sequence.max_k else 0
        sequence.num_reused += sequence.num_cached
        self._changes.append(
            RowSettings(
                row=sequence.row,
                num_cached=sequence.num_cached,
                params=sequence.request.params,
                seed=sequence.request.seed,
                max_k=sequence.max_k,
            )
        )
        self._append_pages(sequence, reused + taken)

    def _append_pages(self, sequence: Sequence, pages: list[int]) -> None:
        first = len(sequence.pages)
        self._new_pages += [(sequence.row, first + i, page) for i, page in enumerate(pages)]
        sequence.pages += pages

    def _plan_prefill(self, prefilling: list[Sequence]) -> tuple[Plan, list[Sequence]]:
        """Chunks of the oldest prompts, as many as fit the budget when padded to the longest."""
        chosen: list[Sequence] = []
        chunks: list[tuple[int, ...]] = []
        longest = 0
        for sequence in prefilling:
            end = sequence.num_cached + self._config.prefill_chunk
            chunk = tuple(sequence.tokens[sequence.num_cached : end])
            longest = max(longest, len(chunk))
            if chosen and (len(chosen) + 1) * longest > self._config.prefill_chunk:
                break
            chosen.append(sequence)
            chunks.append(chunk)
        bound = max(s.num_cached + len(chunk) for s, chunk in zip(chosen, chunks, strict=True))
        return self._plan(chosen, bound, chunks=tuple(chunks)), chosen

    def _plan_cycle(self, running: list[Sequence]) -> tuple[Plan, list[Sequence]] | None:
        """None if the only one running had to give its pages back, to start over with nobody else in the way."""
        for sequence in running:
            if sequence.max_k and self._draftable(sequence.num_cached) == 0:
                sequence.max_k = 0
        k = max(min(self._config.k, s.max_k) for s in running)
        chosen = self._reserve(running, k)
        if not chosen:
            return None
        bound = max(s.num_cached for s in chosen) + k + 1
        return self._plan(chosen, bound, k=k), chosen

    def _reserve(self, running: list[Sequence], k: int) -> list[Sequence]:
        """Gives every running sequence the pages of one cycle, oldest first, preempting the youngest where needed."""
        for sequence in running:
            while sequence.row >= 0:
                last = min(sequence.num_cached + k + 1, len(sequence.request.prompt_ids) + sequence.max_tokens)
                missing = self._num_pages(last) - len(sequence.pages)
                taken = self._pages.take(missing) if missing > 0 else []
                if taken is not None:
                    self._append_pages(sequence, taken)
                    break
                self._preempt(next(reversed(self._admitted.values())))
        return [s for s in running if s.row >= 0]

    def _preempt(self, sequence: Sequence) -> None:
        self._vacate(sequence)
        self._waiting.appendleft(sequence)
        self.num_preempted += 1

    def _vacate(self, sequence: Sequence, *, remember: bool = True) -> None:
        """Offers the computed pages to later prompts, this sequence's own return among them, and lets them go."""
        del self._admitted[sequence.request.id]
        if remember:
            self._pages.remember(sequence.tokens, sequence.pages, sequence.num_cached, sequence.num_drafter)
        self._pages.release(sequence.pages)
        self._free_rows.append(sequence.row)
        sequence.row, sequence.pages, sequence.primed = -1, [], False
        sequence.num_cached = sequence.num_drafter = 0

    def _plan(
        self, chosen: list[Sequence], bound: int, *, k: int = 0, chunks: tuple[tuple[int, ...], ...] = ()
    ) -> Plan:
        params = [s.request.params for s in chosen]
        sampled = [p for p in params if not p.greedy]
        changes = self._flush()
        return Plan(
            rows=tuple(s.row for s in chosen),
            bound=bound,
            k=k,
            chunks=chunks,
            fills_drafter=bool(chunks) and any(s.max_k for s in chosen),
            any_sampled=bool(sampled),
            any_truncated=any(p.top_k or p.top_p < 1.0 or p.min_p for p in sampled),
            changes=changes,
        )

    def _flush(self) -> Changes:
        rows, columns, pages = zip(*self._new_pages, strict=True) if self._new_pages else ((), (), ())
        changes = Changes(rows=tuple(self._changes), page_rows=rows, page_columns=columns, pages=pages)
        self._changes, self._new_pages = [], []
        return changes

    def _num_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self._pages.page_size)
