"""State: the device memory of the cycle, one line a row. Each field says who writes it.

The host fills a row when a request enters it (`apply`); from then on the stages own it. The last row is inert: it
belongs to nobody, padding points there, its length stays 0 and its page table leads to the trash page.

The drafter's entry that joins the embedding of token x[t+1] with the target's feature of position t is stored at slot
t+1, not t. Slot s of the drafter then depends on tokens 0 … s, exactly as slot s of the target does, so a page that two
requests share is right for both, whatever follows it. Slot 0 stays empty. Where a prefix was reused, the feature of its
last position is needed once more: `boundary_PH` keeps it, one a page.

Shapes: R rows and one inert, W = max k + 1 pending places, P pages, H drafter hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.kernels.accept import Ledger
from outpace.kernels.process import Rules
from outpace.kernels.sample import Sampling
from outpace.models.drafter import Drafter
from outpace.speculation.extras import Extras
from outpace.speculation.recent import Recent, num_kept
from outpace.speculation.upload import upload
from outpace.types import Changes, Needs, RowSettings, SamplingKind


@dataclass(slots=True)
class State:
    """Everything that survives from one forward to the next, KV pages apart. The tensors never move."""

    length_R: Tensor
    """Positions in the target's cache; the last token is not among them. Written by prefill and commit."""
    last_token_R: Tensor
    """The newest token, fed to the next verify. Written by prefill and commit."""
    page_table_RP: Tensor
    """Pages of each row, 0 where none. Written by the host."""
    num_pending_R: Tensor
    """Accepted tokens that the drafter has not seen. Written by prefill and commit."""
    pending_tokens_RW: Tensor
    pending_hidden_RWH: Tensor
    """Fused target features, each of the position before its pending token. During prefill place 0 carries the
    feature of the last position computed."""
    boundary_PH: Tensor
    """Fused feature of the last position of each page. Written by prefill and verify."""
    first_R: Tensor
    """Lowest slot that the row's drafter sees: 1, or more where older entries are missing. Written by catch-up."""
    max_k_R: Tensor
    temperature_R: Tensor
    top_k_R: Tensor
    top_p_R: Tensor
    min_p_R: Tensor
    seed_R: Tensor
    chance_RK: Tensor | None
    """By row and place, the chance that a draft is accepted, where that is simulated. Never written."""
    recent: Recent | None = None
    """What the target made of each row's last tokens; None where nothing drafts. Written by prefill and verify."""
    extras: Extras | None = None
    """What penalties, biases and bans go by; None until a request has some (`provide`)."""

    @classmethod
    def allocate(
        cls,
        *,
        max_rows: int,
        pages_per_row: int,
        num_pages: int,
        max_k: int,
        drafter: Drafter | None,
        history: int,
        dtype: torch.dtype,
        device: torch.device,
        chances: Sequence[float] = (),
    ) -> State:
        """`history` is `ResolvedConfig.history`, `chances` are `EngineConfig.simulate_acceptance`."""
        R, W = max_rows + 1, max_k + 1
        hidden_size = 0 if drafter is None else drafter.wiring.hidden_size

        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            length_R=ints(R),
            last_token_R=ints(R),
            page_table_RP=ints(R, pages_per_row),
            num_pending_R=ints(R),
            pending_tokens_RW=ints(R, W),
            pending_hidden_RWH=floats(R, W, hidden_size, dtype=dtype),
            boundary_PH=floats(num_pages, hidden_size, dtype=dtype),
            first_R=ints(R) + 1,
            max_k_R=ints(R),
            temperature_R=floats(R),
            top_k_R=ints(R),
            top_p_R=floats(R),
            min_p_R=floats(R),
            seed_R=ints(R),
            chance_RK=_chances(chances, R, max_k, device),
            recent=None
            if drafter is None or not max_k
            else Recent.allocate(drafter, num_rows=R, num=num_kept(history, max_k), dtype=dtype, device=device),
        )

    @property
    def device(self) -> torch.device:
        return self.length_R.device

    @property
    def inert(self) -> int:
        """The row that padding points to."""
        return len(self.length_R) - 1

    def provide(self, vocab_size: int) -> None:
        """Makes the extras, if they are not there yet."""
        if self.extras is None:
            self.extras = Extras.allocate(len(self.length_R), vocab_size, self.device)

    def withdraw(self) -> None:
        """Lets the extras go, which nobody uses."""
        self.extras = None

    def apply(self, changes: Changes, page_size: int) -> None:
        """Uploads what the host changed: first new rows, then pages (a new row's pages are among them)."""
        if changes.rows:
            self._fill_rows(changes.rows)
        if changes.pages:
            rows, columns, pages = upload((changes.page_rows, changes.page_columns, changes.pages), self.device)
            self.page_table_RP[rows, columns] = pages
        if changes.rows:
            self._carry_boundary(changes.rows, page_size)

    def _fill_rows(self, filled: tuple[RowSettings, ...]) -> None:
        whole = upload([(s.row, s.num_cached, s.max_k, s.params.top_k, s.seed) for s in filled], self.device)
        real = upload(
            [(s.params.temperature, s.params.top_p, s.params.min_p) for s in filled], self.device, torch.float32
        )
        rows = whole[:, 0]
        self.page_table_RP.index_fill_(0, rows, 0)
        self.num_pending_R.index_fill_(0, rows, 0)
        self.first_R.index_fill_(0, rows, 1)
        for column, target in enumerate((self.length_R, self.max_k_R, self.top_k_R, self.seed_R), start=1):
            target[rows] = whole[:, column]
        for column, target in enumerate((self.temperature_R, self.top_p_R, self.min_p_R)):
            target[rows] = real[:, column]
        if self.extras is not None:
            self.extras.fill(filled)

    def _carry_boundary(self, filled: tuple[RowSettings, ...], page_size: int) -> None:
        """A reused prefix ends at a page: the feature of its last position is what the drafter goes on from."""
        hits = [(s.row, s.num_cached // page_size - 1) for s in filled if s.num_cached]
        if hits and self.boundary_PH.shape[1]:
            rows, columns = upload(hits, self.device).unbind(1)
            self.pending_hidden_RWH[rows, 0] = self.boundary_PH[self.page_table_RP[rows, columns]]

    def ledger(self, max_positions: int) -> Ledger:
        """What acceptance moves; drafts stand only before `max_positions`."""
        return Ledger(
            length_R=self.length_R,
            last_token_R=self.last_token_R,
            num_pending_R=self.num_pending_R,
            pending_tokens_RW=self.pending_tokens_RW,
            max_k_R=self.max_k_R,
            seed_R=self.seed_R,
            chance_RK=self.chance_RK,
            max_positions=max_positions,
        )

    def sampling(self, rows_B: Tensor, needs: Needs) -> Sampling:
        """Sampling settings of some rows, and the work that the whole batch takes. Greedily, none is read."""
        every = slice(None) if needs.kind is SamplingKind.GREEDY else rows_B
        return Sampling(
            temperature_B=self.temperature_R[every],
            top_k_B=self.top_k_R[every],
            top_p_B=self.top_p_R[every],
            min_p_B=self.min_p_R[every],
            seed_B=self.seed_R[every],
            kind=needs.kind,
            rules=self._rules(rows_B) if needs.processed else None,
        )

    def _rules(self, rows_B: Tensor) -> Rules:
        assert self.extras is not None, "a request with penalties was planned before `provide`"
        return self.extras.rules(rows_B)

    def count(self, rows_B: Tensor, outcome_BC: Tensor) -> None:
        """Tells the extras what rows emitted: how many tokens each, then its tokens."""
        assert self.extras is not None
        self.extras.add(rows_B, outcome_BC[:, 0], outcome_BC[:, 1:])


def _chances(given: Sequence[float], num_rows: int, max_k: int, device: torch.device) -> Tensor | None:
    """The last chance holds for all places behind."""
    if not given or not max_k:
        return None
    chances = [given[min(place, len(given) - 1)] for place in range(max_k)]
    return torch.tensor([chances] * num_rows, device=device)
