"""The scheduler: which rows the next forward takes, and who gets pages. Host data only; it never sees the device.

It plans ahead of what is known: forwards may be in flight whose tokens nobody has read. Lengths are then upper bounds
for pages and limits; the device knows the true ones. Pages and rows go to their next owner without waiting for what is
in flight: forwards run in the order they were enqueued, so whatever a stale one writes, the new owner overwrites.

Prefill and cycles take turns while both have work, so that a long prompt does not silence the others. When pages run
out the youngest sequence gives its own back and starts over later from its tokens: its answer does not change, since
noise depends on seed and position alone.

Whether prefill fills the drafter's cache is settled when a sequence is admitted: where control sees no use in drafts
it does not, and the sequence lags as after plain steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from outpace.config import ResolvedConfig
from outpace.engine.changes import PendingChanges
from outpace.engine.grammars.masks import masks_of
from outpace.engine.needs import logprobs_of, needs_of, past_of, prompt_logprobs_of
from outpace.engine.pages import Pages
from outpace.engine.sequence import Sequence
from outpace.engine.work import Work, rows_of
from outpace.speculation.control import Control
from outpace.types import CatchUpPlan, CyclePlan, PrefillPlan, RowSettings


class Scheduler:
    """Plans forwards over the sequences it was given.

    Args:
        config: rows, prefill chunk and k are taken from it.
        pages: the pages to hand out.
        draftable: drafts that fit behind a length before the drafter's position limit.
        control: chooses k.
    """

    def __init__(self, config: ResolvedConfig, pages: Pages, draftable: Callable[[int], int], control: Control) -> None:
        self._config = config
        self._pages = pages
        self._draftable = draftable
        self.control = control
        self._waiting: deque[Sequence]
        self._admitted: dict[int, Sequence]
        """By request id, oldest first."""
        self._free_rows: list[int]
        self._changes: PendingChanges
        self.num_preempted = 0
        self.reset(())

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._admitted)

    @property
    def admitted(self) -> tuple[Sequence, ...]:
        """Sequences that hold a row and pages."""
        return tuple(self._admitted.values())

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence behind the others."""
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Takes a finished or aborted sequence out, wherever it is, and lets its pages go."""
        if sequence.row < 0:
            self._waiting.remove(sequence)
        else:
            self._vacate(sequence)

    def reset(self, sequences: Iterable[Sequence]) -> None:
        """After a step that failed: nothing is known of rows and pages, and these start over from their tokens."""
        self._waiting = deque(sequences)
        for sequence in self._waiting:
            sequence.row, sequence.pages = -1, []
            if sequence.grammar is not None:
                sequence.grammar.forget()
        self._admitted = {}
        self._free_rows = list(range(self._config.max_rows - 1, -1, -1))
        self._prefilled_last = False
        self._changes = PendingChanges()

    def next(self, *, drained: bool) -> Work | None:
        """The next forward, or None if there is nothing to plan until more is known.

        Args:
            drained: nothing is in flight, so every length is exact.
        """
        self._admit()
        prefilling = [s for s in self._admitted.values() if not s.prefilled]
        running = [s for s in self._admitted.values() if s.prefilled and not s.surely_done]
        if prefilling and not (running and self._prefilled_last):
            self._prefilled_last = True
            return self._prefill(prefilling)
        work = self._cycle(running, drained) if running else None
        if work is not None:
            self._prefilled_last = False
        return work

    def _admit(self) -> None:
        """Lets sequences in while there are rows, and pages for them and one more for each that is in already.

        Without that reserve a preempted sequence would come back at once, only to be preempted again.
        """
        while self._waiting and self._free_rows:
            sequence = self._waiting[0]
            self._check_drafting(sequence, len(sequence.tokens))
            lags = sequence.max_k > 0 and not self.control.fills_drafter()
            reused = self._reusable(sequence, lags)
            missing = self._num_pages(len(sequence.tokens)) - len(reused)
            taken = self._pages.take(missing + len(self._admitted))
            if taken is None:
                self._pages.release(reused)
                return
            self._pages.release(taken[missing:])
            del taken[missing:]
            self._waiting.popleft()
            self._admitted[sequence.request.id] = sequence
            self._enter(sequence, reused, taken, lags)

    def _reusable(self, sequence: Sequence, lags: bool) -> list[int]:
        """Pages that hold the sequence's beginning already, held for it; none for who wants the prompt computed."""
        if sequence.misses_prompt_logprobs:
            return []
        return self._pages.match(sequence.tokens, needs_drafter=sequence.max_k > 0 and not lags)

    def _enter(self, sequence: Sequence, reused: list[int], taken: list[int], lags: bool) -> None:
        """Gives a sequence a row, over pages that hold its beginning and others to come behind them."""
        num_cached = len(reused) * self._pages.page_size
        sequence.row = self._free_rows.pop()
        sequence.num_cached = sequence.num_prefilled = sequence.length_max = num_cached
        sequence.recent_from = num_cached
        sequence.num_drafter = num_cached if sequence.max_k else 0
        if lags and reused:
            sequence.num_drafter = self._num_filled(sequence)
        sequence.prefill_end = len(sequence.tokens)
        sequence.num_sure, sequence.drafter_lags, sequence.drafter_gap = 0, lags, False
        if sequence.num_reused is None:  # what it finds again after a preemption, it had computed itself
            sequence.num_reused = num_cached
        sequence.lists_prompt = sequence.misses_prompt_logprobs
        if sequence.lists_prompt:
            sequence.prompt_logprobs = []
        self._changes.fill(
            RowSettings(
                row=sequence.row,
                num_cached=num_cached,
                params=sequence.request.params,
                seed=sequence.request.seed,
                max_k=sequence.max_k,
                past=past_of(sequence),
            )
        )
        self._append_pages(sequence, reused + taken)

    def _num_filled(self, sequence: Sequence) -> int:
        """Tokens of a sequence's cached prefix whose drafter entries are filled."""
        filled = self._pages.match(sequence.tokens, needs_drafter=True)
        self._pages.release(filled)
        return len(filled) * self._pages.page_size

    def _append_pages(self, sequence: Sequence, pages: list[int]) -> None:
        self._changes.append(sequence.row, len(sequence.pages), pages)
        sequence.pages += pages

    def _prefill(self, prefilling: list[Sequence]) -> Work:
        """Chunks of the oldest prompts, as many as fit the budget when padded to the longest.

        Those that fill the drafter's cache and those that do not go apart: nobody pays for what is not needed.
        """
        fills = next((not s.drafter_lags for s in prefilling if s.max_k), False)
        prefilling = [s for s in prefilling if not s.max_k or s.drafter_lags != fills]
        ends = [min(s.prefill_end, s.num_prefilled + self._config.prefill_chunk) for s in prefilling]
        lengths = [end - s.num_prefilled for s, end in zip(prefilling, ends, strict=True)]
        chosen = prefilling[: _num_fitting(lengths, self._config.prefill_chunk)]
        chunks = [tuple(s.tokens[s.num_prefilled : end]) for s, end in zip(chosen, ends, strict=False)]
        prompt = prompt_logprobs_of(chosen, chunks)
        for sequence, chunk in zip(chosen, chunks, strict=True):
            sequence.num_prefilled += len(chunk)
            sequence.length_max = sequence.num_prefilled
            sequence.num_sure = int(sequence.prefilled)
        plan = PrefillPlan(
            rows=rows_of(chosen),
            chunks=tuple(chunks),
            ends=tuple(s.prefilled for s in chosen),
            fills_drafter=fills and any(s.max_k for s in chosen),
            needs=needs_of(chosen),
            bound=max(s.length_max for s in chosen),
            logprobs=logprobs_of(chosen),
            prompt=prompt,
            changes=self._changes.flush(),
        )
        return Work(plan, tuple(chosen), masks_of([(place, s) for place, s in enumerate(chosen) if s.prefilled]))

    def _cycle(self, running: list[Sequence], drained: bool) -> Work | None:
        if not drained and any(s.masked for s in running):
            return None  # its masks depend on tokens that nobody has read
        for sequence in running:
            self._check_drafting(sequence, sequence.num_cached)
        k = min(self.control.choose(running).k, max(s.max_k for s in running))
        lagging = [s for s in running if k and s.max_k and s.drafter_lags]
        if lagging:
            return self._catch_up(lagging) if all(s.length_known for s in lagging) else None
        if not self._reserve(running, k, drained):
            return None
        chosen = [s for s in running if s.row >= 0]
        if not chosen:  # the only one had to give its pages back: it starts over with nobody else in the way
            return self.next(drained=drained)
        for sequence in chosen:
            sequence.length_max += k + 1
            sequence.num_sure += 1
            sequence.drafter_lags = sequence.max_k > 0 and k == 0
        plan = CyclePlan(
            rows=rows_of(chosen),
            k=k,
            needs=needs_of(chosen),
            bound=max(s.length_max for s in chosen),
            logprobs=logprobs_of(chosen),
            changes=self._changes.flush(),
        )
        return Work(plan, tuple(chosen), masks_of(list(enumerate(chosen))))

    def _check_drafting(self, sequence: Sequence, length: int) -> None:
        """Past the drafter's position limit a sequence is a plain one: whatever pages hold its beginning will do."""
        if self._draftable(length) == 0:
            sequence.max_k = 0

    def _catch_up(self, lagging: list[Sequence]) -> Work:
        """Their drafter entries behind the last plain steps, as many rows as fit a prefill chunk; lengths are exact.

        Pages may be shared: a drafter has one layer, so an entry is the same whatever the row's drafter sees before it.
        """
        starts = [max(0, s.num_drafter - 1, s.length_max - self._config.history) for s in lagging]
        nums = [s.length_max - start for s, start in zip(lagging, starts, strict=True)]
        num = _num_fitting(nums, max(self._config.prefill_chunk, self._config.history))
        chosen, starts = lagging[:num], starts[:num]
        plan = CatchUpPlan(
            rows=rows_of(chosen),
            starts=tuple(starts),
            nums=tuple(nums[:num]),
            missing=tuple(tuple(s.tokens[start : s.recent_from]) for s, start in zip(chosen, starts, strict=True)),
            cold=tuple(start >= max(1, s.num_drafter) for s, start in zip(chosen, starts, strict=True)),
            bound=max(s.length_max for s in chosen),
            changes=self._changes.flush(),
        )
        for sequence, start, cold in zip(chosen, starts, plan.cold, strict=True):
            sequence.recent_from = min(sequence.recent_from, start)
            sequence.num_drafter = sequence.length_max
            sequence.drafter_gap |= cold
            sequence.drafter_lags = False
        return Work(plan, tuple(chosen))

    def _reserve(self, running: list[Sequence], k: int, drained: bool) -> bool:
        """Gives every running sequence the pages of one cycle, oldest first, preempting the youngest where needed.

        Says whether it could: while something is in flight nobody is preempted, since their tokens are not all known.
        """
        for sequence in running:
            while sequence.row >= 0:
                last = min(sequence.length_max + k + 1, len(sequence.request.prompt_ids) + sequence.max_tokens)
                missing = self._num_pages(last) - len(sequence.pages)
                if missing <= 0:
                    break
                if taken := self._pages.take(missing):
                    self._append_pages(sequence, taken)
                    break
                if not drained:
                    return False
                self._preempt(next(reversed(self._admitted.values())))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._vacate(sequence)
        self._waiting.appendleft(sequence)
        self.num_preempted += 1

    def _vacate(self, sequence: Sequence) -> None:
        """Offers the computed pages to later prompts, this sequence's own return among them, and lets them go."""
        del self._admitted[sequence.request.id]
        num_drafter = 0 if sequence.drafter_gap else sequence.num_drafter
        self._pages.remember(sequence.tokens, sequence.pages, sequence.num_cached, num_drafter)
        self._pages.release(sequence.pages)
        self._free_rows.append(sequence.row)
        self._changes.forget(sequence.row)
        sequence.row, sequence.pages = -1, []

    def _num_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self._pages.page_size)


def _num_fitting(lengths: Iterable[int], budget: int) -> int:
    """How many chunks, from the first on, stay within a budget of tokens when padded to their longest; at least one."""
    num = longest = 0
    for length in lengths:
        longest = max(longest, length)
        if num and (num + 1) * longest > budget:
            break
        num += 1
    return num
