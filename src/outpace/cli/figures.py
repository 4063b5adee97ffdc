"""The short line of figures under an answer, on stderr, and the same as data."""

from __future__ import annotations

from typing import Any

from outpace import LLM, RequestStats
from outpace.lab.timing.answer import Timing
from outpace.wording import count_of


def line(llm: LLM, timing: Timing, stats: RequestStats) -> str:
    """Like `48 tokens · 61.3 tok/s · accept length 2.61 (3.9 drafts a cycle)`."""
    parts = [count_of(len(timing.token_ids), "token"), f"{timing.tok_s:.1f} tok/s"]
    if llm.config.k and stats.drafted:
        parts.append(f"accept length {stats.accept_length:.2f} ({stats.drafted / stats.cycles:.1f} drafts a cycle)")
    else:
        parts.append("plain decoding")
    if stats.simulated:
        parts.append("SIMULATED acceptance: only the speed means anything")
    if stats.lossy:
        parts.append("LOSSY expert reuse: not plain decoding's answer")
    return " · ".join(parts)


def as_dict(llm: LLM, timing: Timing, stats: RequestStats) -> dict[str, Any]:
    """Plain data for JSON; seconds."""
    return {
        "tok_s": round(timing.tok_s, 2),
        "first_token_s": round(timing.first_s, 4),
        "decode_s": round(timing.decode_s, 4),
        "k": llm.config.k,
        **stats.as_dict(),
    }
