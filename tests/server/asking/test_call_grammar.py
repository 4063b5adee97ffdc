"""Which texts the rules for calls admit; the parser of calls says what they mean."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from models.whole_calls import parse_tool_calls
from outpace.engine.grammars.compiler import Compiler
from outpace.errors import RequestError
from outpace.grammar import Grammar
from outpace.models.text.tokenizer import Tokenizer
from outpace.models.text.tokenizer_parts import TokenizerParts
from outpace.models.text.tool_formats import FORMATS, HERMES, KIMI, LLAMA3, MISTRAL, ToolFormat
from outpace.server.asking.call_grammar import CallGrammar

CITY: dict[str, Any] = {
    "type": "object",
    "$defs": {"City": {"enum": ["Oslo", "50% off\nstart: %llguidance"]}},
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "additionalProperties": False,
}
SCHEMAS = {"weather": CITY, "clock": {"type": "object"}}
OSLO, TOKYO, NOW = '{"city": "Oslo"}', '{"city": "Tokyo"}', '{"at": [1]}'


def make_tokenizer(special: tuple[str, ...], words: tuple[str, ...] = ()) -> Tokenizer:
    """Bytes, and what may be special tokens or words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in special])
    backend.add_tokens([tokenizers.AddedToken(word, normalized=False) for word in words])
    return Tokenizer(TokenizerParts(backend=backend, special_tokens={}, chat_template=None))


class Admitted:
    """What a grammar says of texts."""

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer) -> None:
        self._compiled = Compiler(tokenizer, tokenizer.vocab_size).compile(grammar)
        self._tokenizer = tokenizer

    def begins(self, text: str) -> bool:
        """The text may be the beginning of an answer."""
        return self._after(text) is not None

    def whole(self, text: str) -> bool:
        """The text may be an answer."""
        state = self._after(text)
        return state is not None and state.is_accepting()

    def ended(self, text: str) -> bool:
        """It may be one, and nothing may follow."""
        return self.whole(text) and not any(self.begins(text + more) for more in ("a", "{", "[", ",", ";", *OPENINGS))

    def _after(self, text: str) -> Any:
        state = self._compiled.start.deep_copy()
        ids = self._tokenizer.encode(text)
        return state if state.try_consume_tokens(ids) == len(ids) else None


OPENINGS = tuple(form.opening for form in FORMATS.values())


def one(form: ToolFormat, name: str, arguments: str) -> str:
    """A call, as the family writes it."""
    if form is KIMI:
        return in_section(kimi_call(name, arguments))
    if form is MISTRAL:
        return f"[TOOL_CALLS]{name}[ARGS]{arguments}"
    said = f'{{"name": "{name}", "{form.key}": {arguments}}}'
    return f"<tool_call>\n{said}\n</tool_call>" if form is HERMES else said


def kimi_call(name: str, arguments: str, number: str = "0") -> str:
    return f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def in_section(calls: str) -> str:
    return f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"


def several(form: ToolFormat, num: int) -> str:
    """Calls of one answer."""
    if form is KIMI:
        return in_section("".join(kimi_call("weather", OSLO, str(7 + i)) for i in range(num)))
    return (";" if form is LLAMA3 else "").join([one(form, "weather", OSLO)] * num)


def rules(form: ToolFormat, tokenizer: Tokenizer, most_calls: int = 3) -> CallGrammar:
    return CallGrammar(form, list(SCHEMAS.items()), most_calls, tokenizer.special_id)


@pytest.fixture(params=["special", "words", "bytes"])
def spelled(request: pytest.FixtureRequest) -> Any:
    """Tokenizers that know the tags of a form as special tokens, as ordinary ones, or not at all."""

    def make(form: ToolFormat) -> Tokenizer:
        return make_tokenizer(
            form.special if request.param == "special" else (), form.special if request.param == "words" else ()
        )

    return make


@pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))
def test_free_text_is_free_and_calls_in_it_fit(form: ToolFormat, spelled: Any) -> None:
    tokenizer = spelled(form)
    admitted = Admitted(rules(form, tokenizer).free(), tokenizer)
    for text in ("", " ", "Hello, 日本 {x} [1] <tool 50% [TOOL", "a" * 3000, "<|python_ <tool_cal"):
        assert admitted.whole(text), text
    before = "" if form is LLAMA3 else "Let me see. "
    for name, arguments in (("weather", OSLO), ("clock", NOW), ("clock", "{}")):
        call = before + one(form, name, arguments)
        assert admitted.whole(call), call
        content, (found,) = parse_tool_calls(call, form, SCHEMAS)
        assert (content, found.name) == (before.strip(), name)
        jsonschema.validate(json.loads(found.arguments), SCHEMAS[name])
    for name, arguments in (
        ("weather", TOKYO),
        ("weather", "{}"),
        ("weather", OSLO[:-1] + ', "x": 1}'),
        ("rain", OSLO),
    ):
        assert not admitted.begins(before + one(form, name, arguments))
    assert admitted.whole(before + form.opening) is False


@pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))
def test_forced_calls_leave_no_other_text(form: ToolFormat, spelled: Any) -> None:
    tokenizer = spelled(form)
    admitted = Admitted(rules(form, tokenizer).forced(), tokenizer)
    call = one(form, "weather", OSLO)
    assert admitted.whole(call) and admitted.whole("\n" + call)
    assert not admitted.whole("") and not admitted.begins("Let me") and not admitted.begins(call + " So")
    assert not admitted.begins(one(form, "weather", TOKYO))
    assert admitted.ended(several(form, 3)) and not admitted.begins(several(form, 4))
    assert len(parse_tool_calls(several(form, 3), form, SCHEMAS)[1]) == 3
    single = Admitted(rules(form, tokenizer, most_calls=1).forced(), tokenizer)
    assert single.ended(call)


@pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))
def test_calls_or_json(form: ToolFormat, spelled: Any) -> None:
    tokenizer = spelled(form)
    wanted = {"type": "object", "properties": {"name": {"const": "it"}}, "required": ["name"]}
    admitted = Admitted(rules(form, tokenizer).or_json(wanted), tokenizer)
    assert admitted.whole('{"name": "it"}') and admitted.whole(one(form, "weather", OSLO))
    assert not admitted.begins("It is") and not admitted.begins(one(form, "weather", TOKYO))


def test_one_call_ends_the_answer_where_no_second_may_be(spelled: Any) -> None:
    tokenizer = spelled(HERMES)
    call = one(HERMES, "clock", NOW)
    single, pair = (Admitted(rules(HERMES, tokenizer, most).free(), tokenizer) for most in (1, 2))
    assert single.ended("a " + call)
    assert pair.whole(f"a {call} b {call}") and pair.ended(call + call)
    assert pair.whole(f"a {call} b") and not pair.begins(f"{call}{call} b")


def test_the_families_own_ways(spelled: Any) -> None:
    mistral, llama = spelled(MISTRAL), spelled(LLAMA3)
    admitted = Admitted(rules(MISTRAL, mistral).free(), mistral)
    pair = f'[{{"name": "weather", "arguments": {OSLO}}}, {{"name": "clock", "arguments": {{}}}}]'
    assert admitted.ended("So: [TOOL_CALLS]" + pair)
    assert not admitted.begins("[TOOL_CALLS]" + pair.replace("Oslo", "Tokyo"))
    admitted = Admitted(rules(LLAMA3, llama).free(), llama)
    call = one(LLAMA3, "weather", OSLO)
    assert admitted.whole(call) and admitted.whole(f"I look. <|python_tag|>{call}; {call}")
    assert not admitted.begins('{"a"') and not admitted.begins(' \n{"nam": ') and not admitted.begins(call + "a")


def test_kimi_numbers_its_calls_within_one_section(spelled: Any) -> None:
    tokenizer = spelled(KIMI)
    admitted = Admitted(rules(KIMI, tokenizer).free(), tokenizer)
    for number in ("0", "12", "9999"):
        assert admitted.ended("So: " + in_section(kimi_call("weather", OSLO, number)))
    for wrong in (
        kimi_call("weather", OSLO),
        in_section(kimi_call("weather", OSLO, "")),
        in_section(kimi_call("weather", OSLO, "00")),
        in_section(kimi_call("weather", OSLO, "10000")),
        in_section(kimi_call("rain", OSLO)),
        in_section(""),
    ):
        assert not admitted.begins(wrong), wrong


def test_an_id_between_name_and_arguments_where_the_model_has_such_a_token() -> None:
    tokenizer = make_tokenizer(MISTRAL.special)
    admitted = Admitted(rules(MISTRAL, tokenizer).free(), tokenizer)
    call = f"[TOOL_CALLS]weather[CALL_ID]abcDEF123[ARGS]{OSLO}"
    assert admitted.whole(call) and parse_tool_calls(call, MISTRAL, SCHEMAS)[1][0].name == "weather"


@pytest.mark.parametrize("most_calls", [1, 128])
def test_many_tools_are_taken(most_calls: int) -> None:
    tokenizer = make_tokenizer(HERMES.special)
    calls = [(f"tool_{i}", CITY) for i in range(128)]
    admitted = Admitted(CallGrammar(HERMES, calls, most_calls, tokenizer.special_id).free(), tokenizer)
    assert admitted.whole(one(HERMES, "tool_127", OSLO)) and not admitted.begins(one(HERMES, "tool_128", OSLO))


def test_the_vocabulary_is_prepared_before_the_first_grammar() -> None:
    tokenizer = make_tokenizer(())
    compiler = Compiler(tokenizer, tokenizer.vocab_size)
    prepared = compiler.warm().result()
    assert compiler.warm().result() == prepared
    assert compiler.compile(Grammar.choice(["a"])).executor is prepared[1]
    assert isinstance(Compiler(None, 10).warm().exception(), RequestError)
