"""Second turns: what a user might say after an answer, whatever it was, and some that fit its kind."""

from __future__ import annotations

from random import Random
from typing import Any

from prompt_sources import templates


def with_followup(prompt: dict[str, Any], random: Random) -> dict[str, Any]:
    """The prompt with one or two further turns."""
    pools, words = templates.read("followups"), templates.read("words")
    kind = str(prompt["kind"])
    special = "code" if kind.startswith("cod") else "math" if kind in ("word problem", "exercise") else "general"
    pool = pools[special if random.random() < 0.7 else "general"]
    fields = {
        field: random.choice(words[section])
        for field, section in (
            ("audience", "audiences"),
            ("tone", "tones"),
            ("form", "forms"),
            ("language", "languages"),
            ("name", "names"),
        )
    }
    turns = [turn.format_map(fields) for turn in random.sample(pool, 2 if random.random() < 0.15 else 1)]
    return {"turns": [prompt["prompt"], *turns], "kind": kind}
