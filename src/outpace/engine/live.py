"""A request of an `LLM` while it is answered: the engine's updates in, chunks out."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from outpace.config import SamplingParams
from outpace.engine.answer import Answer
from outpace.engine.engine import Engine
from outpace.engine.results import Chunk, RequestStats
from outpace.errors import RequestError
from outpace.models.text.tokenizer import Tokenizer


class LiveAnswer:
    """One request, asked when `begin` says so and ended in the engine as soon as its answer has ended.

    Args:
        engine: serves it.
        tokenizer: makes its text.
        prompt_ids: the prompt.
        params: how to answer.
        kept: special tokens that its text shows, such as those around tool calls.

    Raises:
        RequestError: the request cannot be served.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer | None,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        kept: Collection[str] = (),
    ) -> None:
        self._max_tokens = engine.check(prompt_ids, params)
        self.prompt_ids = prompt_ids
        self._engine = engine
        self._params = params
        self._answer = Answer(tokenizer, params, kept)
        self._stats = RequestStats.none(
            simulated=bool(engine.config.simulate_acceptance), lossy=engine.config.expert_reuse > 0
        )
        self._request_id: int | None = None

    def begin(self) -> None:
        """Queues it."""
        self._request_id = self._engine.add(self.prompt_ids, self._params, checked=self._max_tokens)

    def take(self) -> Chunk | None:
        """What was written since the last time; None if nothing.

        Raises:
            RequestError: its grammar left no token to go on with.
        """
        assert self._request_id is not None
        update = self._engine.poll(self._request_id)
        if update is None:
            return None
        if update.failure is not None:
            raise RequestError(update.failure)
        piece = self._answer.push(update.token_ids, update.finish_reason, closed=update.closed)
        so_far = self._stats
        stats = RequestStats.of(update.counts, update.num_reused, simulated=so_far.simulated, lossy=so_far.lossy)
        if num_cut := len(update.token_ids) - piece.num_tokens:
            stats = stats.cut(num_cut, self._stats)
        self._stats = stats
        if piece.finish_reason is not None:
            self.end()
        return Chunk(
            text=piece.text,
            token_ids=update.token_ids[: piece.num_tokens],
            finish_reason=piece.finish_reason,
            stopped_by=piece.stopped_by,
            stats=stats,
            logprobs=None if update.logprobs is None else update.logprobs[: piece.num_tokens],
            prompt_logprobs=update.prompt_logprobs,
        )

    def end(self) -> None:
        """Frees what it holds in the engine, whether or not it was answered."""
        if self._request_id is not None:
            self._engine.abort(self._request_id)
