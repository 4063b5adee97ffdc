"""Small programming exercises with worked examples: functions composed at random, run to get true examples.

They have the shape of introductory programming tasks (signature, docstring, examples) without being anyone's tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from prompt_sources import templates


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on a value: its name in code, its description, and what it does."""

    name: str
    text: str
    run: Callable[[Any], Any]


def _vowels(text: str) -> int:
    return sum(c in "aeiou" for c in text.lower())


NUMBER_FILTERS = (
    Step("evens", "the even numbers", lambda x: [n for n in x if n % 2 == 0]),
    Step("odds", "the odd numbers", lambda x: [n for n in x if n % 2]),
    Step("positives", "the positive numbers", lambda x: [n for n in x if n > 0]),
    Step("negatives", "the negative numbers", lambda x: [n for n in x if n < 0]),
    Step("multiples_of_three", "the numbers divisible by three", lambda x: [n for n in x if n % 3 == 0]),
    Step("unique", "the values that occur exactly once", lambda x: [n for n in x if x.count(n) == 1]),
    Step("repeated", "the values that occur more than once", lambda x: [n for n in x if x.count(n) > 1]),
    Step("above_average", "the numbers above the average of the list", lambda x: [n for n in x if n * len(x) > sum(x)]),
    Step("two_digit", "the numbers that have two digits", lambda x: [n for n in x if 10 <= abs(n) < 100]),
    Step("first_half", "the first half of the list", lambda x: x[: len(x) // 2]),
    Step("at_odd_positions", "the elements at odd positions", lambda x: x[1::2]),
    Step(
        "peaks",
        "the elements larger than both neighbors",
        lambda x: [b for a, b, c in zip(x, x[1:], x[2:], strict=False) if b > a and b > c],
    ),
)
NUMBER_MAPS = (
    Step("", "", lambda x: x),
    Step("", "", lambda x: x),
    Step("squared", "squared", lambda x: [n * n for n in x]),
    Step("doubled", "doubled", lambda x: [2 * n for n in x]),
    Step("absolute", "taken as absolute values", lambda x: [abs(n) for n in x]),
    Step("negated", "with their signs flipped", lambda x: [-n for n in x]),
    Step("digit_sums", "replaced by the sum of their digits", lambda x: [sum(map(int, str(abs(n)))) for n in x]),
    Step("incremented", "increased by one", lambda x: [n + 1 for n in x]),
    Step("clipped", "limited to the range 0 to 10", lambda x: [min(10, max(0, n)) for n in x]),
)
NUMBER_ENDS = (
    Step("sum", "Return the sum of {}", sum),
    Step("count", "Count {}", len),
    Step("max", "Return the largest of {}, or None if there are none", lambda x: max(x, default=None)),
    Step("min", "Return the smallest of {}, or None if there are none", lambda x: min(x, default=None)),
    Step("sorted", "Return {} in ascending order", sorted),
    Step("reversed", "Return {} in reverse order", lambda x: x[::-1]),
    Step("list", "Return a list of {}", list),
    Step("running_total", "Return the running totals of {}", lambda x: [sum(x[: i + 1]) for i in range(len(x))]),
    Step(
        "differences",
        "Return the differences between neighbors among {}",
        lambda x: [b - a for a, b in pairwise(x)],
    ),
    Step(
        "spread",
        "Return the difference between the largest and the smallest of {}, or 0 if there are none",
        lambda x: max(x) - min(x) if x else 0,
    ),
    Step(
        "is_increasing",
        "Check whether {} are in strictly increasing order",
        lambda x: all(a < b for a, b in pairwise(x)),
    ),
    Step(
        "positions", "Return a dictionary from each of {} to how often it occurs", lambda x: {n: x.count(n) for n in x}
    ),
)
TEXT_FILTERS = (
    Step("long_words", "the words longer than four letters", lambda x: [w for w in x.split() if len(w) > 4]),
    Step("short_words", "the words of at most three letters", lambda x: [w for w in x.split() if len(w) <= 3]),
    Step(
        "vowel_words", "the words that start with a vowel", lambda x: [w for w in x.split() if w[0].lower() in "aeiou"]
    ),
    Step(
        "capital_words",
        "the words that start with a capital letter",
        lambda x: [w for w in x.split() if w[0].isupper()],
    ),
    Step("words", "the words", lambda x: x.split()),
    Step("letters", "the letters", lambda x: [c for c in x if c.isalpha()]),
    Step("consonants", "the consonants", lambda x: [c for c in x if c.isalpha() and c.lower() not in "aeiou"]),
    Step("vowels", "the vowels", lambda x: [c for c in x if c.lower() in "aeiou"]),
    Step("digits", "the digits", lambda x: [c for c in x if c.isdigit()]),
)
TEXT_MAPS = (
    Step("", "", lambda x: x),
    Step("", "", lambda x: x),
    Step("upper", "in upper case", lambda x: [w.upper() for w in x]),
    Step("mirrored", "each written backwards", lambda x: [w[::-1] for w in x]),
    Step("doubled", "each written twice", lambda x: [w * 2 for w in x]),
    Step("swapped", "with upper and lower case swapped", lambda x: [w.swapcase() for w in x]),
)
TEXT_ENDS = (
    Step("count", "Count {}", len),
    Step("join", "Join {} with dashes", "-".join),
    Step("list", "Return a list of {}", list),
    Step("sorted", "Return {} sorted alphabetically", sorted),
    Step(
        "longest",
        "Return the longest of {}, or an empty string if there are none",
        lambda x: max(x, key=len, default=""),
    ),
    Step("lengths", "Return the lengths of {}", lambda x: [len(w) for w in x]),
    Step("distinct", "Return how many different values there are among {}", lambda x: len(set(x))),
    Step("frequency", "Return a dictionary that counts {}", lambda x: {w: x.count(w) for w in x}),
    Step(
        "most_vowels",
        "Return the one with the most vowels among {}, or an empty string",
        lambda x: max(x, key=_vowels, default=""),
    ),
    Step("concat", "Concatenate {} into one string", "".join),
)


def exercises(random: Random) -> Iterator[dict[str, Any]]:
    """Endless prompts."""
    while True:
        numbers = random.random() < 0.6
        parts = (NUMBER_FILTERS, NUMBER_MAPS, NUMBER_ENDS) if numbers else (TEXT_FILTERS, TEXT_MAPS, TEXT_ENDS)
        chosen = [random.choice(part) for part in parts]
        yield {"prompt": _write(chosen, numbers, random), "kind": "code: exercise"}


def _write(steps: list[Step], numbers: bool, random: Random) -> str:
    keep, change, end = steps
    name = "_".join(part for part in (end.name, keep.name, change.name) if part)
    argument = (
        random.choice(("numbers", "values", "nums", "items")) if numbers else random.choice(("text", "s", "sentence"))
    )
    kind = "list[int]" if numbers else "str"
    text = end.text.format(f"{keep.text} in {argument}" + (f", {change.text}" if change.text else ""))
    examples = "\n".join(
        f"    >>> {name}({value!r})\n    {end.run(change.run(keep.run(value)))!r}" for value in _inputs(numbers, random)
    )
    result = end.run(change.run(keep.run(_inputs(numbers, random)[0])))
    code = _signature(name, argument, kind, result, f"{text}.\n{examples}", random)
    first = _inputs(numbers, random)[0]
    return random.choice(templates.read("code")["exercise"]).format(
        code=code,
        name=name,
        argument="a list of numbers" if numbers else "a string",
        text=text,
        example=f"{name}({first!r}) should give {end.run(change.run(keep.run(first)))!r}",
        language=random.choice(templates.read("code")["languages"]),
    )


def _signature(name: str, argument: str, kind: str, result: Any, docstring: str, random: Random) -> str:
    """The head of the function in one of the layouts that people use."""
    if random.random() < 0.5:
        return f'def {name}({argument}: {kind}):\n    """{docstring}\n    """\n'
    kind = kind.replace("list[", "List[")
    returned = "List" if isinstance(result, list) else type(result).__name__
    return f'from typing import List\n\n\ndef {name}({argument}: {kind}) -> {returned}:\n    """ {docstring}\n    """\n'


def _inputs(numbers: bool, random: Random) -> list[Any]:
    if not numbers:
        return random.sample(("", *templates.read("code")["sentences"]), 2)
    return [[random.randint(-9, 30) for _ in range(random.randint(3, 8))] for _ in range(random.randint(1, 3))]
