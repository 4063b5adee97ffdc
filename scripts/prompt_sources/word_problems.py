"""Grade-school word problems: story shapes filled with random names, things and numbers.

The answer is the target's own, right or wrong: what matters is that it is text that the target writes on such prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from prompt_sources import templates


def word_problems(random: Random) -> Iterator[dict[str, Any]]:
    """Endless prompts."""
    shapes = templates.read("word_problems")
    while True:
        if random.random() < 0.15:
            yield {"prompt": random.choice(shapes["exercises"]).format_map(_fields(random)), "kind": "exercise"}
        else:
            story = random.choice(shapes["stories"]).format_map(_fields(random))
            question = random.choice(shapes["questions"])
            yield {"prompt": question.format(story=story[0].upper() + story[1:]), "kind": "word problem"}


def _fields(random: Random) -> dict[str, Any]:
    words, fractions = templates.read("words"), templates.read("word_problems")["fractions"]
    fields: dict[str, Any] = {
        **dict(zip("ABC", random.sample(words["names"], 3), strict=True)),
        **dict(zip("XY", random.sample(words["items"], 2), strict=True)),
        "P": random.choice(words["places"]),
        "K": random.choice(words["containers"]),
        "T": random.choice(words["cities"]),
        "q": random.choice((5, 10, 15, 20, 25, 30, 40, 60, 75)),
        "q2": random.choice((5, 10, 20, 25, 50)),
    }
    fields |= {f"n{i}": random.randint(2, 12) for i in range(1, 6)}
    fields |= {f"m{i}": random.randint(10, 90) for i in range(1, 5)}
    fields |= {f"h{i}": random.choice((100, 120, 150, 240, 300, 360, random.randint(100, 900))) for i in (1, 2)}
    fields |= {f"p{i}": _price(random) for i in (1, 2)}
    fields |= {f"f{i}": random.choice(fractions) for i in (1, 2)}
    return fields


def _price(random: Random) -> str:
    if random.random() < 0.5:
        return str(random.randint(2, 40))
    return f"{random.randint(1, 20)}.{random.choice(('25', '50', '75'))}"
