"""One request as its client saw it: when what came, what the server counted, and what went wrong.

Times are seconds of the client's clock. Tokens come from the server's `usage` (or a tokenizer that was named), never
from the number of chunks: a chunk holds what one cycle emitted, or several.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

Counted = Literal["usage", "tokenizer"]
Placed = Literal["usage", "characters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One event of a stream that brought text or the end."""

    at_s: float
    num_characters: int
    tokens_so_far: int | None = None
    """The server's own count after this piece, where it tells one with each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What a server said of speculation in one answer, or in many together."""

    emitted: float
    """Tokens out of cycles: those that reached the user, without the first, which prefill brings."""
    cycles: float
    drafted: float | None = None
    accepted: float | None = None
    accepted_at: tuple[float, ...] = ()
    """Accepted at each place of a draft."""
    drafted_at: tuple[float, ...] = ()
    """Cycles that made a draft at each place; not told where every cycle makes one at every place."""

    @property
    def plain_cycles(self) -> float:
        """Plain steps among the cycles, which emit a token each."""
        if not self.drafted_at:
            return self.cycles if self.drafted == 0 else 0.0
        return max(0.0, self.cycles - self.drafted_at[0])

    @property
    def accept_length(self) -> float:
        """Tokens a cycle that drafted, the bonus token included; 1, a plain step's, where none did."""
        drafting = self.cycles - self.plain_cycles
        return (self.emitted - self.plain_cycles) / drafting if drafting else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A request and what came of it. A failed one has an `error`, and whatever came before."""

    id: str
    set: str
    sent_s: float
    ended_s: float
    pieces: tuple[Piece, ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    counted_by: Counted = "usage"
    speculation: Speculation | None = None
    error: str | None = None
    """The kind and what was said; None where all went well."""
    text: str = field(default="", repr=False)

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def placed_by(self) -> Placed:
        """How tokens are told apart within an answer."""
        return "usage" if all(piece.tokens_so_far is not None for piece in self.pieces) else "characters"

    @property
    def first_s(self) -> float:
        """When the first text came."""
        return self.pieces[0].at_s

    @property
    def last_s(self) -> float:
        """When the last text or the finish reason came."""
        return self.pieces[-1].at_s

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.sent_s

    @property
    def latency_s(self) -> float:
        return self.last_s - self.sent_s

    @property
    def decode_s(self) -> float:
        return self.last_s - self.first_s

    @property
    def num_texts(self) -> int:
        """Pieces that brought text."""
        return sum(piece.num_characters > 0 for piece in self.pieces)

    @property
    def undercounted(self) -> bool:
        """It came in more pieces than the server counts tokens: the count may be too low."""
        return self.ok and self.counted_by == "usage" and self.num_texts > self.tokens

    @property
    def tokens(self) -> int:
        assert self.completion_tokens is not None
        return self.completion_tokens

    def arrivals(self) -> list[tuple[float, float]]:
        """When how many tokens were there: (seconds, tokens so far), one a piece.

        Where the server counts only at the end, an answer's tokens are spread over its pieces by their characters.
        """
        if self.placed_by == "usage":
            return [(piece.at_s, float(piece.tokens_so_far or 0)) for piece in self.pieces]
        total = sum(piece.num_characters for piece in self.pieces)
        found, seen = [], 0
        for piece in self.pieces:
            seen += piece.num_characters
            found.append((piece.at_s, self.tokens * seen / total if total else float(self.tokens)))
        return found

    @property
    def decoded(self) -> float:
        """Tokens that came after the first piece."""
        return self.tokens - self.arrivals()[0][1]

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first piece; None where there was only one piece."""
        return self.decode_s / self.decoded if self.decoded > 0 and self.decode_s > 0 else None

    def gaps(self) -> list[tuple[float, float]]:
        """(seconds since the piece before, tokens of the piece), of each piece but the first that brought tokens."""
        return [
            (later - earlier, after - before)
            for (earlier, before), (later, after) in pairwise(self.arrivals())
            if after > before
        ]

    def by_context(self, edges: Sequence[int]) -> list[tuple[float, float]]:
        """(tokens, seconds) of decoding in each bucket of context length; the last is what lies beyond the edges.

        Context is the prompt and the answer so far. A piece that crosses an edge is split in proportion.
        """
        buckets = [[0.0, 0.0] for _ in range(len(edges) + 1)]
        for (began, before), (ended, after) in pairwise(self.arrivals()):
            start, stop = (self.prompt_tokens or 0) + before, (self.prompt_tokens or 0) + after
            if stop <= start:
                buckets[bisect_left(edges, stop)][1] += ended - began
                continue
            for place, (low, high) in enumerate(pairwise((0.0, *edges, float("inf")))):
                share = max(0.0, min(stop, high) - max(start, low)) / (stop - start)
                buckets[place][0] += share * (after - before)
                buckets[place][1] += share * (ended - began)
        return [(tokens, seconds) for tokens, seconds in buckets]
