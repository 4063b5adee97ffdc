"""Grammars in llguidance's own notation, and what the library makes of one for a vocabulary.

The library bounds itself by the size of a grammar, by the states of its lexer and by the work of a step; not by the
time that it takes to bring JSON schemas and regular expressions into its form: see `trial_process`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from outpace.errors import RequestError
from outpace.grammar import Grammar, json_rule

HEADER = '%llguidance {"no_forcing": true}\n'
"""Every spelling of a text by tokens is admitted, not just the tokenizer's."""


def source_of(grammar: Grammar) -> str:
    """A grammar as the library reads it.

    Raises:
        RequestError: it cannot be brought into that notation.
    """
    return HEADER + _rules(grammar)


def build(vocabulary: LLTokenizer, source: str, num_ids: int) -> LLMatcher:
    """A matcher before the first token.

    Args:
        vocabulary: with the end's id behind `num_ids` others.
        source: of `source_of`.
        num_ids: token ids without the end.

    Raises:
        RequestError: the library cannot honour it, or it admits nothing.
    """
    start = LLMatcher(vocabulary, source, log_level=0, limits=_limits())
    first = start.deep_copy()
    mask = np.frombuffer(first.compute_bitmask(), dtype=np.uint8)
    if error := start.get_error() or first.get_error():
        raise RequestError(f"grammar: {reason(error)}")
    if only_ends(mask, num_ids):
        raise RequestError("grammar: it admits the empty text alone; give one that admits a token")
    return start


def reason(error: str) -> str:
    """What the library says, on one line, by the lines of the grammar, and without what it appends of its state."""
    said = " ".join(error.replace("<non-verbose/>", "").split())
    said = re.sub(r"^at (\d+)\(", lambda found: f"at {int(found[1]) - HEADER.count(chr(10))}(", said)
    return "no token fits it" if said.startswith("NoExtension") or not said else said[:500]


def only_ends(mask: np.ndarray[Any, Any], num_ids: int) -> bool:
    """Whether a packed mask admits the end and nothing else; `mask` is of bytes."""
    place, bit = divmod(num_ids, 8)
    return bool(mask[place] == 1 << bit and not mask[:place].any())


def _rules(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            return f"start: {json_rule(json.loads(grammar.source))}"
        case "regex":
            return f"start: /{regex_to_lark(grammar.source, '')}/"
        case "choice":
            return "start: " + " | ".join(json.dumps(choice) for choice in json.loads(grammar.source))
        case "ebnf":
            return _lark(grammar.source)


def _lark(rules: str) -> str:
    if "%llguidance" in rules:
        raise RequestError("grammar: it holds %llguidance, which is for the engine to say; remove that line")
    try:
        lark: str = any_to_lark(rules)
    except Exception as error:  # the converter has errors of many kinds
        raise RequestError(f"grammar: it cannot be read as EBNF: {reason(str(error))}") from error
    return lark


def _limits() -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=10_000, max_lexer_states=25_000, max_grammar_size=100_000, verbose_errors=False
    )
