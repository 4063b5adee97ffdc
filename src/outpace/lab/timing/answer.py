"""Times one answer as a client sees it. Time counts only while waiting for tokens, so showing them costs nothing.

The prompt's own computation ends with the first token; what follows is decoding, and the speeds are about decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outpace import LLM, Chunk, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One answer. Seconds; `first_s` until the first token came, `decode_s` from then on."""

    token_ids: tuple[int, ...]
    first_s: float
    decode_s: float
    num_decoded: int
    """Tokens that came after the first wait."""
    cycles: int
    """Verify passes or plain steps; 0 where the contender does not tell."""

    @property
    def tok_s(self) -> float:
        return self.num_decoded / self.decode_s if self.decode_s else 0.0

    @property
    def cycle_s(self) -> float:
        return self.decode_s / self.cycles if self.cycles else 0.0

    @property
    def accept_length(self) -> float:
        return self.num_decoded / self.cycles if self.cycles else 0.0


def time_answer(
    llm: LLM, prompt_ids: Sequence[int], params: SamplingParams, on_chunk: Callable[[Chunk], None] | None = None
) -> Timing:
    """Streams an answer and times it; `on_chunk` sees each piece while the clock stands still."""
    stream = llm.stream(prompt_ids, params)
    waits: list[float] = []
    chunks: list[Chunk] = []
    while True:
        start = time.perf_counter()
        chunk = next(stream, None)
        wait = time.perf_counter() - start
        if chunk is None:
            break
        waits.append(wait)
        chunks.append(chunk)
        if on_chunk is not None:
            on_chunk(chunk)
    return Timing(
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        first_s=waits[0],
        decode_s=sum(waits[1:]),
        num_decoded=sum(len(chunk.token_ids) for chunk in chunks[1:]),
        cycles=chunks[-1].stats.cycles,
    )
