"""Answers under grammars where ranks share the model: the first rank follows them, and its masks reach the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.test_lossless import answers
from outpace import LLM, Grammar, SamplingParams
from server.models import make_drafter, make_model

PET = Grammar.json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
SAMPLED = SamplingParams(max_tokens=40, temperature=0.9, seed=3)
PARAMS = [
    replace(SAMPLED, temperature=0.0, grammar=Grammar.regex("(ab|cd)+[0-9]{2,12}x")),
    replace(SAMPLED, grammar=PET, logprobs=2),
    replace(SAMPLED, ignore_eos=True),
    replace(SAMPLED, grammar=PET, repetition_penalty=1.3, top_p=0.9, seed=8),
]
PROMPTS = [[1, 2, 3], [9] * 20, [5, 6], [7]]


def test_ranks_follow_grammars_as_one_does(tmp_path: Path) -> None:
    """Prompts end in different chunks, so that masked and other rows come together and apart."""
    target = make_model(tmp_path / "target")
    drafter = str(make_drafter(target, tmp_path / "drafter"))
    options = {"dtype": "float32", "device": "cpu", "num_pages": 200, "page_size": 4, "max_rows": 8, "prefill_chunk": 8}
    alone = answers(LLM(str(target), drafter=None, **options).generate(PROMPTS, PARAMS))
    with LLM(str(target), drafter=drafter, k=3, control="fixed", tensor_parallel=2, **options) as llm:
        assert answers(llm.generate(PROMPTS, PARAMS)) == alone
        plain = [replace(params, max_k=0) for params in PARAMS]
        assert answers(llm.generate(PROMPTS, plain)) == alone
        assert llm.generate([[1, 2, 3]], PARAMS[0])[0].text.startswith(("ab", "cd"))
