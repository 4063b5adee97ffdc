"""The real model writes JSON: the same with drafts as without."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest

from outpace import LLM, Grammar, SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "population": {"type": "integer"},
        "continent": {"enum": ["Africa", "Asia", "Europe", "America"]},
    },
    "required": ["name", "population", "continent"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Describe the city of Paris as JSON."}]


@pytest.mark.real_model
def test_a_schema_is_followed_and_drafts_change_nothing() -> None:
    llm = LLM("smollm2", dtype="float32", control="fixed", max_context=256, num_pages=64)
    asked = SamplingParams(max_tokens=60, temperature=0.5, seed=1, grammar=Grammar.json_schema(SCHEMA))
    found = llm.chat(QUESTION, asked)
    plain = llm.chat(QUESTION, replace(asked, max_k=0))
    assert found.token_ids == plain.token_ids
    assert found.finish_reason == "stop"
    jsonschema.validate(json.loads(found.text), SCHEMA)
    assert found.stats.accept_length > 1.2
