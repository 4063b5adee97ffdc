"""The runner: enqueues a plan's forward and hands out a ticket for what it chooses. It owns the device state.

Nothing is read back before the ticket is: on a GPU the host is free while the forward runs.

Shapes: B rows, S tokens a row, P pages a row.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from outpace.config import ResolvedConfig
from outpace.engine.frame_inputs import FrameInputs, PrefillInputs
from outpace.engine.frames import Frame, Frames, Shape
from outpace.engine.grammars.masks import Masks, mask_words
from outpace.engine.marks import Marks
from outpace.engine.prefill_frames import PrefillFrame, PrefillShape, shape_of
from outpace.engine.ticket import Ticket, on_host
from outpace.errors import RequestError
from outpace.models.drafter import Drafter
from outpace.models.target import Target
from outpace.speculation.catch_up import catch_up, recompute
from outpace.speculation.chosen import Chosen
from outpace.speculation.cycle import Cycle, no_mark
from outpace.speculation.pair import Pair
from outpace.speculation.prefill import prefill
from outpace.speculation.prompt_tops import Asked
from outpace.speculation.state import State
from outpace.speculation.upload import upload
from outpace.types import CatchUpPlan, Changes, CyclePlan, Plan, PrefillPlan

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072)


class Runner:
    """Runs plans for one pair of models.

    Args:
        pair: the models and their pages.
        config: settings.
    """

    def __init__(self, pair: Pair, config: ResolvedConfig) -> None:
        self._pair = pair
        self.config = config
        self.page_size = config.page_size
        self.state = State.allocate(
            max_rows=config.max_rows,
            pages_per_row=-(-config.max_context // config.page_size),
            num_pages=config.num_pages,
            max_k=config.k,
            drafter=pair.drafter,
            history=config.history,
            dtype=pair.target.embed.weight.dtype,
            device=pair.target.embed.weight.device,
            chances=config.simulate_acceptance,
        )
        framed = self.state.device.type == "cuda" and not config.eager
        self.num_ahead = 1 if framed else 0
        """Forwards that stay in flight while the next is planned: on a CPU there is nothing to hide behind."""
        self.buckets = tuple(b for b in BUCKETS if b < config.max_rows) + (config.max_rows,)
        """Numbers of rows that framed cycles are padded to, ascending."""
        self.frames = Frames(pair, self.state, config.page_size) if framed else None
        """None runs cycles as they come, over no more pages than they reach: what pays on a CPU."""
        self._last: torch.cuda.Event | None = None
        self._timed = False
        self._dice = torch.Generator().manual_seed(0)

    def provide(self) -> None:
        """Memory for penalties, biases and bans, when the first request with some comes.

        Raises:
            RequestError: there is not enough.
        """
        if self.state.extras is None and not self.make_extras():
            raise RequestError(
                "penalties, logit_bias, min_tokens and bad_words need more memory than is left for all "
                f"{self.state.inert} rows: leave them out, or lower memory_fraction or max_rows"
            )

    def make_extras(self) -> bool:
        """Takes that memory. Says whether there was enough."""
        try:
            self.state.provide(self._pair.target.config.vocab_size)
        except RuntimeError as error:
            if self.state.device.type == "cuda" and not isinstance(error, torch.OutOfMemoryError):
                raise  # what an earlier kernel did wrong
            return False
        return True

    def withdraw(self) -> None:
        """Lets that memory go, which nobody uses."""
        self.state.withdraw()

    @contextmanager
    def with_phases(self) -> Iterator[None]:
        """Times the phases of cycles that are enqueued inside, in frames of their own; one at a time."""
        frames, self._timed = self.frames, True
        if frames is not None:
            self.frames = Frames(self._pair, self.state, self.page_size, timed=True)
        try:
            yield
        finally:
            self.frames, self._timed = frames, False

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """What runs inside speaks to no other rank; what it computes is worth nothing, and compiles every kernel."""
        target = self.target
        target.rehearsing = target.group.rehearsal.on = True
        try:
            yield
        finally:
            target.rehearsing = target.group.rehearsal.on = False

    @contextmanager
    def without_graphs(self) -> Iterator[None]:
        """Cycles that are enqueued inside run operation by operation; nothing may be in flight at either end."""
        frames, self.frames = self.frames, None
        try:
            yield
        finally:
            self.frames = frames

    @contextmanager
    def with_models(self, target: Target, drafter: Drafter | None) -> Iterator[None]:
        """Runs plans that are no graphs with other models over the same pages; they must compute the same."""
        own, self._pair = self._pair, replace(self._pair, target=target, drafter=drafter)
        try:
            yield
        finally:
            self._pair = own

    @property
    def target(self) -> Target:
        """What it runs, or this rank's share of it."""
        return self._pair.target

    def occupy(self, num_rows: int, columns: int) -> None:
        """Gives the first rows pages 1, 2, … for `columns` pages each, over and over if there are too few; for timing.

        Nobody may be using these rows, and no prefix may be kept. The rows accept no draft.
        """
        num_pages = len(self.state.boundary_PH) - 1
        pages = torch.arange(num_rows * columns, device=self.state.device) % num_pages + 1  # page 0 is the trash page
        self.state.page_table_RP[:num_rows, :columns] = pages.view(num_rows, columns)
        self.state.max_k_R[:num_rows] = 0

    def put_back(self, num_rows: int, context: int) -> None:
        """Sets the first rows' lengths, with one token pending: a random one each, so that they route as text would.

        They are the same on every rank.
        """
        state, vocab_size = self.state, self._pair.target.config.vocab_size
        tokens = torch.randint(vocab_size, (num_rows,), generator=self._dice).to(state.device)
        hidden = torch.randn(num_rows, state.pending_hidden_RWH.shape[2], generator=self._dice)
        state.length_R[:num_rows] = context
        state.num_pending_R[:num_rows] = 1
        state.last_token_R[:num_rows] = tokens
        state.pending_tokens_RW[:num_rows, 0] = tokens
        state.pending_hidden_RWH[:num_rows, 0] = hidden.to(state.device, state.pending_hidden_RWH.dtype)

    def vacate(self, num_rows: int) -> None:
        """Empties the first rows."""
        for field in (self.state.page_table_RP, self.state.length_R, self.state.num_pending_R):
            field[:num_rows] = 0

    @torch.inference_mode()
    def capture(self, shape: Shape | PrefillShape) -> None:
        """Makes the graph of a shape before it is needed, where there are graphs."""
        if self.frames is not None:
            self.frames.of(shape)

    @torch.inference_mode()
    def enqueue(self, plan: Plan, masks: Masks | None = None) -> Ticket:
        """Starts one forward; the device does it after those before it.

        Args:
            plan: the forward.
            masks: makes the masks of its rows under grammars. A cycle with some is waited for until it has drafted.
        """
        began = time.perf_counter()
        if isinstance(plan, CyclePlan) and self.frames is not None:
            frame = self._framed(self.frames, plan)
            chosen = frame.graph.replay() if frame.cut is None or masks is None else frame.cut.replay(masks)
            return self._ticket(plan, chosen, began, frame.marks)
        if isinstance(plan, PrefillPlan) and self.frames is not None:
            prefill_frame = self._framed_prefill(self.frames, plan)
            if prefill_frame is not None:
                return self._ticket(plan, prefill_frame.graph.replay(), began, None)
        marks = Marks(self.state.device) if self._timed or self.frames is None else None
        self.state.apply(plan.changes, self.page_size)
        match plan:
            case CyclePlan():
                chosen = self._cycle(plan, marks, masks)
            case PrefillPlan():
                chosen = self._prefill(plan, masks)
            case CatchUpPlan():
                chosen = self._catch_up(plan)
        return self._ticket(plan, chosen, began, marks)

    def _framed(self, frames: Frames, plan: CyclePlan) -> Frame:
        """The frame of a cycle, its inputs on their way."""
        bucket = next(bucket for bucket in self.buckets if bucket >= len(plan.rows))
        frame = frames.of(Shape(bucket, plan.k, plan.needs))
        frame.inputs.write(plan.rows, self._left_for(frame.inputs, plan.changes))
        frames.num_replays += 1
        frames.num_eager += frame.graph.why_eager is not None
        return frame

    def _framed_prefill(self, frames: Frames, plan: PrefillPlan) -> PrefillFrame | None:
        """The frame of a short prefill, its inputs on their way; None for what no frame takes."""
        shape = shape_of(plan, self.buckets)
        frame = None if shape is None else frames.of(shape)
        if frame is not None:
            frame.inputs.write(plan.rows, self._left_for(frame.inputs, plan.changes), plan.chunks, plan.ends)
        frames.prefills.count(frame)
        return frame

    def _left_for(self, inputs: FrameInputs | PrefillInputs, changes: Changes) -> Changes:
        """What a frame is to change; what it cannot take is changed before it."""
        if inputs.fit(changes):
            return changes
        self.state.apply(changes, self.page_size)
        return Changes()

    def _cycle(self, plan: CyclePlan, marks: Marks | None, masks: Masks | None) -> Chosen:
        rows_B = upload(plan.rows, self.state.device)
        sampling = self.state.sampling(rows_B, plan.needs)
        table_BP = self._table(rows_B, plan.bound)
        mark = marks.start() if marks is not None else no_mark
        num_logprobs = plan.needs.num_logprobs
        cycle = Cycle(self._pair, self.state, rows_B, table_BP, sampling, plan.k, mark, num_logprobs)
        if masks is None:
            return cycle.run()
        cycle.draft()
        cycle.verify()
        drafts = [] if cycle.drafts_BK is None else cycle.drafts_BK.tolist()
        return cycle.accept(self._allowed(masks, len(plan.rows), plan.k + 1, drafts))

    def _allowed(self, masks: Masks, num_rows: int, num_places: int, drafts: list[list[int]]) -> Tensor:
        """Packed masks on the device."""
        num_ids = self.target.config.vocab_size
        shape = (num_rows, num_places, mask_words(num_ids))
        allowed_BSW = torch.empty(shape, dtype=torch.int32, device=self.state.device)
        return masks.bring(allowed_BSW, drafts, num_ids, self.target.group)

    def _prefill(self, plan: PrefillPlan, masks: Masks | None) -> Chosen:
        rows_B = upload(plan.rows, self.state.device)
        tokens_BS, num_tokens_B = self._padded(plan.chunks)
        return prefill(
            self._pair,
            self.state,
            rows_B,
            tokens_BS,
            num_tokens_B,
            self._table(rows_B, plan.bound),
            self.state.sampling(rows_B, plan.needs),
            ends_B=upload(plan.ends, self.state.device) if plan.needs.processed else None,
            fills_drafter=plan.fills_drafter,
            num_logprobs=plan.needs.num_logprobs,
            asked=self._asked(plan, tokens_BS.shape[1]),
            allowed_BSW=None if masks is None else self._allowed(masks, len(plan.rows), 1, []),
        )

    def _asked(self, plan: PrefillPlan, num_places: int) -> Asked | None:
        if plan.prompt is None:
            return None
        following_AS, _ = self._padded(plan.prompt.following, num_places)
        return Asked(upload(plan.prompt.places, self.state.device), following_AS, max(plan.prompt.nums))

    def _catch_up(self, plan: CatchUpPlan) -> Chosen:
        rows_B, start_B, num_B, cold_B = upload((plan.rows, plan.starts, plan.nums, plan.cold), self.state.device)
        table_BP = self._table(rows_B, plan.bound)
        if any(plan.missing):
            tokens_BS, num_tokens_B = self._padded(plan.missing)
            recompute(self._pair, self.state, rows_B, tokens_BS, num_tokens_B, start_B, table_BP)
        return catch_up(self._pair, self.state, rows_B, start_B, num_B, cold_B.bool(), table_BP, max(plan.nums))

    def _padded(self, chunks: Sequence[Sequence[int]], at_least: int = 1) -> tuple[Tensor, Tensor]:
        """Ragged chunks as tokens_BS, padded with id 0, and the number of real ones a row."""
        longest = max(at_least, *map(len, chunks))
        tokens_BS = upload([(*chunk, *(0,) * (longest - len(chunk))) for chunk in chunks], self.state.device)
        return tokens_BS, upload([len(chunk) for chunk in chunks], self.state.device)

    def _table(self, rows_B: Tensor, bound: int) -> Tensor:
        """The rows' page tables, as wide as they reach."""
        return self.state.page_table_RP[rows_B, : -(-bound // self.page_size)]

    def _ticket(self, plan: Plan, chosen: Chosen, began: float, marks: Marks | None) -> Ticket:
        copy = on_host(chosen)
        if self.state.device.type != "cuda":
            return Ticket(plan, copy, None, None, time.perf_counter() - began, began, marks)
        before = self._last if self._last is not None and not self._last.query() else None
        self._last = torch.cuda.Event(enable_timing=True)
        self._last.record()
        return Ticket(plan, copy, self._last, before, None, began, marks)

    def describe(self) -> dict[str, Any]:
        """What of the cycles is a graph, as plain data for JSON."""
        if self.frames is not None:
            return self.frames.describe()
        on_cpu = self.state.device.type != "cuda"
        return {"why_none": "cycles run as they come on a CPU" if on_cpu else "eager was asked for"}
