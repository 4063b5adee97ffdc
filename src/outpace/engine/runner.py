"""The runner: gets a Plan, returns an Outcome. It owns the device state; the scheduler never sees it.

It enqueues work and reads nothing back, so on a GPU the host is free while a cycle runs.

Shapes: B rows, S tokens a row, P pages a row.
"""

from __future__ import annotations

import torch

from outpace.config import EngineConfig
from outpace.speculation.cycle import cycle
from outpace.speculation.pair import Pair
from outpace.speculation.prefill import prefill
from outpace.speculation.state import State, upload
from outpace.types import Outcome, Plan


class Runner:
    """Runs plans for one pair of models.

    Args:
        pair: the models and their pages.
        config: resolved settings; `max_context` and `num_pages` are numbers by now.
    """

    def __init__(self, pair: Pair, config: EngineConfig) -> None:
        assert config.max_context is not None and config.num_pages is not None
        self._pair = pair
        self._page_size = config.page_size
        self.state = State.allocate(
            max_rows=config.max_rows,
            pages_per_row=-(-config.max_context // config.page_size),
            num_pages=config.num_pages,
            max_k=config.k,
            hidden_size=pair.drafter.wiring.hidden_size if pair.drafter is not None else 0,
            dtype=pair.target.embed.weight.dtype,
            device=pair.target.embed.weight.device,
        )

    @torch.inference_mode()
    def run(self, plan: Plan) -> Outcome:
        """One prefill chunk or one cycle."""
        state = self.state
        state.apply(plan.changes, self._page_size)
        rows_B = upload(plan.rows, state.device)
        table_BP = state.page_table_RP[rows_B, : -(-plan.bound // self._page_size)]
        sampling = state.sampling(rows_B, plan)
        if not plan.chunks:
            return cycle(self._pair, state, rows_B, table_BP, sampling, plan.k)
        longest = max(len(chunk) for chunk in plan.chunks)
        tokens_BS = upload([chunk + (0,) * (longest - len(chunk)) for chunk in plan.chunks], state.device)
        num_tokens_B = upload([len(chunk) for chunk in plan.chunks], state.device)
        return prefill(
            self._pair,
            state,
            rows_B,
            tokens_BS,
            num_tokens_B,
            table_BP,
            sampling,
            fills_drafter=plan.fills_drafter,
        )
