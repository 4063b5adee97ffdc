"""The engine: requests in, runs of tokens out. One `step` is schedule, enqueue, collect.

    add / abort ──► Scheduler ── Plan ──► Runner ── Outcome ──► collect ──► Update

On a GPU one forward is always in flight: while it runs, the next is planned and enqueued, and only then are its tokens
read. A stop is discovered a cycle late, and what the row did meanwhile is dropped.

Everything a request can do wrong is refused in `add`, so that nothing behind it can hurt another request.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Sequence as TokenIds
from dataclasses import dataclass
from itertools import count

from outpace.config import MAX_SEED, ResolvedConfig, SamplingParams
from outpace.engine.calibrate import make_control
from outpace.engine.grammars.compiler import Compiler
from outpace.engine.grammars.matcher import Matcher
from outpace.engine.limits import Limits
from outpace.engine.pages import Pages
from outpace.engine.phase_log import PhaseLog
from outpace.engine.runner import Runner
from outpace.engine.scheduler import Scheduler
from outpace.engine.sequence import Counts, FinishReason, Sequence
from outpace.engine.ticket import Ticket
from outpace.engine.warm_up import capture_common, compile_common
from outpace.engine.work import Work
from outpace.errors import RequestError
from outpace.models.text.tokenizer import Tokenizer
from outpace.speculation.control import Control, CycleSeen
from outpace.speculation.pair import Pair
from outpace.types import CatchUpPlan, CyclePlan, Outcome, PrefillPlan, Request, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Update:
    """What came of one request since it was last polled."""

    request_id: int
    token_ids: tuple[int, ...]
    """New tokens, cut at the stop."""
    finish_reason: FinishReason | None
    counts: Counts
    """Live counters of the request; final once `finish_reason` is set."""
    num_reused: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of `token_ids`; None if not asked for."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """One for each prompt token, with the first news of a request that asked; the first token has none."""
    closed: bool = False
    """Its grammar ended the answer, whose last token is then no stop token."""
    failure: str | None = None
    """Why no more will come, and no finish reason."""


class Engine:
    """Serves requests with one pair of models.

    Args:
        pair: the models and their pages.
        config: resolved settings.
        control: chooses k; None does as `config.control` says.
        runner: runs the plans; None makes one for this process alone.
        tokenizer: grammars need it.
    """

    def __init__(
        self,
        pair: Pair,
        config: ResolvedConfig,
        control: Control | None = None,
        runner: Runner | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.config = config
        self._pair = pair
        self.pages = Pages(config.num_pages, config.page_size, config.prefix_reuse)
        self._limits = Limits(
            vocab_size=pair.target.config.vocab_size,
            eos_token_ids=pair.target.config.eos_token_ids,
            max_context=config.max_context,
            page_size=config.page_size,
            num_pages=self.pages.num_usable,
        )
        self.grammars = Compiler(tokenizer, pair.target.config.vocab_size)
        self.runner = runner or Runner(pair, config)
        compiled = compile_common(self.runner, config)
        self.control: Control = control or make_control(self.runner, config)
        fills_drafter = config.k > 0 and self.control.fills_drafter()
        self.warmed_up = capture_common(self.runner, config, compiled, fills_drafter=fills_drafter)
        """What was captured before the first request, as plain data for JSON."""
        self.scheduler = Scheduler(config, self.pages, self._draftable, self.control)
        self.phases = PhaseLog()
        self._in_flight: deque[tuple[Work, Ticket]] = deque()
        self._sequences: dict[int, Sequence] = {}
        """Requests whose end nobody has been told yet: with their tokens, all that a rebuild needs."""
        self._torn = False
        """A change was begun and not ended: rows, pages and queues may contradict each other."""
        self._ids = count()

    @property
    def busy(self) -> bool:
        """Some request is not finished."""
        if self._torn:
            return any(not sequence.over for sequence in self._sequences.values())
        return self.scheduler.busy

    def add(self, prompt_ids: TokenIds[int], params: SamplingParams, *, checked: int | None = None) -> int:
        """Queues a request and returns its id.

        Args:
            prompt_ids, params: what is asked.
            checked: what `check` said of them; None asks it.

        Raises:
            RequestError: `check` says why, or there is no memory for what its parameters need.
        """
        max_tokens = self.check(prompt_ids, params) if checked is None else checked
        if params.processed:
            self.runner.provide()
        seed = secrets.randbelow(MAX_SEED) if params.seed is None else params.seed
        request = Request(id=next(self._ids), prompt_ids=tuple(prompt_ids), params=params, seed=seed)
        eos = () if params.ignore_eos else self._pair.target.config.eos_token_ids
        max_k = self.config.k if params.max_k is None else min(params.max_k, self.config.k)
        sequence = Sequence(request, max_tokens, max_k, frozenset(eos) | frozenset(params.stop_token_ids))
        if params.grammar is not None:
            sequence.grammar = Matcher(self.grammars.compile(params.grammar), eos)
        sequence.acceptance = self.control.start()
        self.scheduler.add(sequence)
        self._sequences[request.id] = sequence
        return request.id

    def check(self, prompt_ids: TokenIds[int], params: SamplingParams) -> int:
        """How many tokens a request may be answered with: `max_tokens`, or what the context leaves.

        Raises:
            RequestError: the prompt is empty, too long for the context or the pages, a token id is unknown, or the
                grammar cannot be compiled, which is waited for.
        """
        max_tokens = self._limits.check(prompt_ids, params)
        if params.grammar is not None:
            if self.config.simulate_acceptance:
                raise RequestError("grammar: the engine simulates acceptance, so its answers follow none; leave it out")
            self.grammars.compile(params.grammar)
        return max_tokens

    def abort(self, request_id: int) -> None:
        """Ends a request at once and frees its pages. Nothing happens if its end was told already."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None and not sequence.over and not self._torn:
            self._torn = True
            self.scheduler.remove(sequence)
            self._torn = False

    def step(self) -> None:
        """Enqueues one forward and reads the oldest one that need not stay in flight.

        If it raises, an interrupt at any point included, no token is lost and none is wrong: the next step rebuilds
        rows, pages and queues from the tokens that every request has.
        """
        if self._torn:
            self._rebuild()
        self._torn = True
        work = self.scheduler.next(drained=not self._in_flight) if self.scheduler.busy else None
        if work is not None:
            self.phases.enqueued(work.plan, time.perf_counter())
            self._in_flight.append((work, self._enqueue(work)))
        if self._in_flight and (work is None or len(self._in_flight) > self.runner.num_ahead):
            self._collect(*self._in_flight.popleft())
        self._torn = False

    def _enqueue(self, work: Work) -> Ticket:
        return self.runner.enqueue(work.plan) if work.masks is None else self.runner.enqueue(work.plan, work.masks)

    def _rebuild(self) -> None:
        self._in_flight.clear()
        self.pages.reset()
        self.scheduler.reset([s for s in self._sequences.values() if not s.over])

    def poll(self, request_id: int) -> Update | None:
        """What a request has written since it was last polled; None if nothing. After its end it is forgotten."""
        sequence = self._sequences[request_id]
        reason = sequence.finish_reason
        new = tuple(sequence.tokens[len(sequence.request.prompt_ids) + sequence.num_told :])
        if not new and sequence.failure is None:
            return None
        sequence.num_told += len(new)
        if sequence.over:
            del self._sequences[request_id]
        logprobs, of_prompt = _logprobs(sequence, len(new))
        return Update(
            request_id,
            new,
            reason,
            sequence.counts,
            sequence.num_reused or 0,
            logprobs,
            of_prompt,
            closed=sequence.closed,
            failure=sequence.failure,
        )

    def poll_all(self) -> list[Update]:
        """The news of all requests."""
        return [update for i in list(self._sequences) if (update := self.poll(i)) is not None]

    def _collect(self, work: Work, ticket: Ticket) -> None:
        outcome = ticket.read()
        seconds = ticket.seconds() if work.masks is None else time.perf_counter() - ticket.began
        context, num_kept = sum(sequence.num_cached for sequence in work.owners), 0
        if isinstance(work.plan, CyclePlan) and (phases := ticket.phases()):
            self.phases.took(work.plan, phases)
        for index, sequence in enumerate(work.owners):
            if sequence.row < 0:
                num_kept += 1  # stopped or aborted while this was in flight, as it would be behind a plain step
                continue
            match work.plan:
                case CyclePlan(k=k):
                    num_kept += self._collect_cycle(k, sequence, outcome, index)
                case PrefillPlan(chunks=chunks, fills_drafter=fills_drafter):
                    self._collect_chunk(len(chunks[index]), fills_drafter, sequence, outcome, index)
            if sequence.over:
                self.scheduler.remove(sequence)
        if seconds is not None:  # None if the device had stood idle before it
            self._observe(work, context, num_kept, outcome.touched, seconds)

    def _observe(self, work: Work, context: int, num_kept: int, touched: int | None, seconds: float) -> None:
        """Tells control what a cycle or a catch-up cost."""
        if isinstance(work.plan, PrefillPlan):
            return
        num_rows = len(work.owners)
        if isinstance(work.plan, CatchUpPlan):
            self.control.pay(num_rows, context, seconds)
            return
        self.control.observe(
            CycleSeen(
                num_rows=num_rows,
                k=work.plan.k,
                context=context,
                num_emitted=num_kept,
                seconds=seconds,
                touched=touched,
                masked=work.masks is not None,
            )
        )

    def _collect_chunk(
        self, num_tokens: int, fills_drafter: bool, sequence: Sequence, outcome: Outcome, index: int
    ) -> None:
        sequence.num_cached += num_tokens
        sequence.prompt_logprobs += outcome.prompt_logprobs.get(index, ())
        if sequence.max_k and fills_drafter:
            sequence.num_drafter = sequence.num_cached
        if sequence.num_cached < sequence.prefill_end:
            return
        self.pages.remember(sequence.tokens, sequence.pages, sequence.num_cached, sequence.num_drafter)
        sequence.num_sure -= 1
        sequence.extend(outcome.tokens[index], outcome.logprobs.get(index, ()))

    def _collect_cycle(self, k: int, sequence: Sequence, outcome: Outcome, index: int) -> int:
        """Returns how many tokens the user gets out of it."""
        run = outcome.tokens[index]
        if sequence.max_k and k:
            sequence.num_drafter = sequence.num_cached + 1  # this cycle's catch-up reached the last token's slot
        num_drafts = min(k, sequence.max_k, self._draftable(sequence.num_cached))
        if num_drafts:
            self.control.learn(sequence, num_drafts, len(run) - 1)
        num_kept = sequence.extend(run, outcome.logprobs.get(index, ()))
        sequence.num_cached += num_kept
        sequence.length_max -= k + 1 - len(run)
        sequence.num_sure -= 1
        sequence.counts.add(num_drafts, len(run), num_kept)
        return num_kept

    def _draftable(self, length: int) -> int:
        drafter = self._pair.drafter
        return 0 if drafter is None else max(0, drafter.wiring.max_positions - length)


def _logprobs(
    sequence: Sequence, num_new: int
) -> tuple[tuple[TokenLogprobs, ...] | None, tuple[TokenLogprobs | None, ...] | None]:
    """Of the `num_new` tokens that were told last, and of the prompt if they were the first."""
    params, end = sequence.request.params, sequence.num_told
    new = None if params.logprobs is None else tuple(sequence.logprobs[end - num_new : end])
    if params.prompt_logprobs is None or end > num_new:
        return new, None
    return new, (None, *sequence.prompt_logprobs)
