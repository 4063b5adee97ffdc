"""Everyday requests by template: explaining, writing, roleplay, advice, reasoning, extraction, editing, listing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from prompt_sources import templates

FAMILIES = {
    "explain": 6,
    "writing": 8,
    "roleplay": 3,
    "advice": 4,
    "reasoning": 4,
    "listing": 4,
    "coding": 5,
    "extraction": 4,
    "editing": 4,
}
"""Relative frequencies."""

SUBJECT_LISTS = ("science", "computing", "mathematics", "humanities", "everyday")

FIELDS = (
    ("topic", "everyday", 2),
    ("character", "characters", 2),
    ("name", "names", 3),
    ("surname", "surnames", 1),
    ("thing", "things", 1),
    ("city", "cities", 1),
    ("genre", "genres", 1),
    ("tone", "tones", 1),
    ("audience", "audiences", 1),
    ("form", "forms", 1),
    ("product", "products", 3),
    ("animal", "animals", 3),
    ("job", "jobs", 1),
    ("company", "companies", 1),
    ("food", "foods", 1),
    ("item", "items", 2),
    ("adjective", "adjectives", 1),
    ("language", "languages", 2),
    ("computing", "computing", 1),
    ("place", "places", 1),
)
"""(field, section of words.txt, how many distinct ones: field, field2, field3)."""

OWN_FIELDS = (
    ("program", "programs"),
    ("program_short", "short programs"),
    ("pattern", "patterns"),
    ("shell", "shell"),
    ("simple_task", "tasks"),
)
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November")


def requests(random: Random) -> Iterator[dict[str, Any]]:
    """Endless prompts."""
    shapes = templates.read("conversation")
    while True:
        kind = random.choices(tuple(FAMILIES), tuple(FAMILIES.values()))[0]
        if kind == "extraction":
            prompt = _extraction(random)
        elif kind == "editing":
            prompt = _editing(random)
        else:
            prompt = random.choice(shapes[kind]).format_map(_fields(random))
        yield {"prompt": prompt, "kind": kind}


def _fields(random: Random) -> dict[str, str]:
    words, shapes = templates.read("words"), templates.read("conversation")
    subjects = tuple(subject for name in SUBJECT_LISTS for subject in words[name])
    drawn = [("subject", random.sample(subjects, 2))]
    drawn += [(field, random.sample(words[section], count)) for field, section, count in FIELDS]
    fields = {
        field if place == 1 else f"{field}{place}": value
        for field, values in drawn
        for place, value in enumerate(values, start=1)
    }
    fields |= {field: random.choice(shapes[section]) for field, section in OWN_FIELDS}
    fields |= {f"a_{field}": _article(fields[field]) for field in ("job",)}
    fields |= {f"an_{field}": _article(fields[field]) for field in ("animal", "animal2")}
    return fields | {
        "letter": random.choice("aeiorst"),
        "age": str(random.randint(19, 80)),
        "n": str(random.randint(2, 400)),
        "hour": str(random.randint(1, 11)),
        "month": random.choice(MONTHS),
        "day": str(random.randint(1, 28)),
        "year": str(random.randint(1850, 2023)),
        "price": f"{random.randint(5, 900)}.{random.choice(('00', '49', '99'))}",
        "stars": str(random.randint(1, 5)),
    }


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _facts(random: Random, count: int) -> str:
    facts = random.sample(templates.read("conversation")["facts"], count)
    return " ".join(fact.format_map(_fields(random)) for fact in facts)


def _extraction(random: Random) -> str:
    if random.random() < 0.15:
        fields = _fields(random)
        record = {"name": fields["name"], "city": fields["city"], "item": fields["product"], "quantity": fields["n"]}
        return f"Describe this record in a full sentence, then convert it to YAML:\n{json.dumps(record)}"
    form = random.choice(templates.read("conversation")["extract"])
    return form.format(text=_facts(random, random.randint(2, 5)))


def _editing(random: Random) -> str:
    text = _facts(random, random.randint(1, 3))
    broken = (
        text.lower().replace(" the ", " teh ").replace(" is ", " are ").replace(" works ", " work ").replace(",", "")
    )
    form = random.choice(templates.read("conversation")["edit"])
    return form.format_map(_fields(random) | {"text": text, "broken": broken})
