"""Answers under grammars: `jsonschema` and `re` say whether they are right, plain decoding whether speculation is."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.reference import raw_logits
from engine.test_lookahead import ahead
from engine.test_pages import assert_all_back
from engine.tiny import OracleDrafter, engine, tiny_drafter, tiny_target
from engine.worded import END, PIECES, SPECIAL, TOKENIZER, ids, worded_target
from outpace import Grammar, RequestError, SamplingParams
from outpace.engine.grammars.matcher import Matcher
from outpace.engine.results import Result

TARGET = worded_target()
DRAFTER = tiny_drafter(TARGET)
PROMPTS = [[3, 1, 4], [1, 5], [9, 2, 6, 5, 3, 5]]
PET = Grammar.json_schema(
    {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)


def params(grammar: Grammar, **changes: Any) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 60, "temperature": 0.9, "seed": 3, "grammar": grammar} | changes))


def tokens(results: list[Result]) -> list[tuple[Any, ...]]:
    return [(r.token_ids, r.text, r.finish_reason, r.stopped_by) for r in results]


def everywhere(asked: SamplingParams | list[SamplingParams], target: Any = TARGET) -> list[Result]:
    """The answers of plain decoding, once every other way to decode has been seen to give them."""
    plain = engine(target).generate(PROMPTS, asked)
    known = OracleDrafter([r.prompt_ids + r.token_ids for r in plain], 0.8)
    for drafter, k, num_ahead in ((DRAFTER, 1, 0), (known, 3, 0), (known, 4, 1), (DRAFTER, 7, 2)):
        llm = ahead(engine(target, drafter, k=k), num_ahead) if num_ahead else engine(target, drafter, k=k)
        assert tokens(llm.generate(PROMPTS, asked)) == tokens(plain), (k, num_ahead)
        assert_all_back(llm)
    return plain


SCHEMAS = st.recursive(
    st.one_of(
        st.sampled_from(
            [
                {"type": "boolean"},
                {"type": "null"},
                {"type": "string", "maxLength": 4},
                {"type": "string", "pattern": "^[ab]{1,3}$"},
                {"enum": ["ab", 12, True]},
                {"const": {"a": [1]}},
            ]
        ),
        st.builds(
            lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more}, *[st.integers(0, 99)] * 2
        ),
    ),
    lambda inner: st.one_of(
        st.builds(lambda item, n: {"type": "array", "items": item, "maxItems": n}, inner, st.integers(0, 3)),
        st.builds(
            lambda parts, needed: {
                "type": "object",
                "properties": parts,
                "required": sorted(parts)[:needed],
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from("abcde"), inner, max_size=3),
            st.integers(0, 3),
        ),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=8)
@given(SCHEMAS, st.sampled_from([0.0, 0.8, 1.5]), st.integers(0, 1 << 20))
def test_answers_are_what_their_schema_admits(schema: dict[str, Any], temperature: float, seed: int) -> None:
    asked = params(Grammar.json_schema(schema), temperature=temperature, seed=seed)
    for result in everywhere(asked):
        if result.finish_reason == "stop":
            jsonschema.validate(json.loads(result.text), schema)
        else:
            assert len(result.token_ids) == 60


REGEXES = st.recursive(
    st.sampled_from(["a", "b", "[a-d]", "ca?b", "é", r"\d", "true", r"\.", "[^a]"]),
    lambda inner: st.one_of(
        st.builds("({}|{})".format, inner, inner),
        st.builds("{}{}".format, inner, inner),
        st.builds("({}){{{},4}}".format, inner, st.integers(0, 4)),
        st.builds("({})*".format, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=8)
@given(REGEXES, st.sampled_from([0.0, 1.0]), st.integers(0, 1 << 20))
def test_answers_are_what_their_regex_matches(pattern: str, temperature: float, seed: int) -> None:
    asked = params(Grammar.regex(pattern), temperature=temperature, seed=seed, max_tokens=30)
    try:
        found = everywhere(asked)
    except RequestError as error:
        assert "empty text alone" in str(error) and re.fullmatch(pattern, ""), pattern
        return
    for result in found:
        assert result.finish_reason == "length" or re.fullmatch(pattern, result.text), (pattern, result.text)


def test_every_token_that_the_grammar_admits_is_admitted_and_the_best_is_chosen() -> None:
    """By brute force: of all pieces that keep the text a beginning of a choice, the likeliest."""
    choices = ["cab", "cabab", "true", "tru12"]
    for result in engine(TARGET, DRAFTER).generate(PROMPTS, params(Grammar.choice(choices), temperature=0.0)):
        text, so_far = b"", list(result.prompt_ids)
        for token in result.token_ids:
            fits = [i for i, p in enumerate(PIECES) if any(c.encode().startswith(text + p) for c in choices)]
            fits += [END] if text.decode() in choices else []
            logits = raw_logits(TARGET, so_far)[-1]
            assert token == max(fits, key=lambda i: float(logits[i]))
            so_far.append(token)
            text += PIECES[token] if token != END else b""
        assert result.text == text.decode() and result.text in choices


def test_rows_with_and_without_grammars_decode_together() -> None:
    mixed = [params(PET), SamplingParams(max_tokens=30, temperature=0.9, seed=1), params(Grammar.regex("[ab]+c"))]
    together = everywhere(mixed)
    alone = [engine(TARGET).generate([p], m)[0] for p, m in zip(PROMPTS, mixed, strict=True)]
    assert tokens(together) == tokens(alone)


def test_with_everything_else_that_a_request_may_want() -> None:
    asked = [
        params(
            PET,
            top_k=9,
            top_p=0.95,
            repetition_penalty=1.2,
            frequency_penalty=0.3,
            logit_bias={ids(b" ")[0]: -100.0, ids(b"\n")[0]: -100.0},
            bad_words=[ids(b"1"), [PIECES.index(b"true")]],
            logprobs=3,
        ),
        params(PET, min_tokens=50, stop=("]",)),
        params(Grammar.regex("(ab)*"), min_tokens=7, ignore_eos=True, max_tokens=9, temperature=0.0),
    ]
    first, second, third = everywhere(asked)
    assert first.finish_reason == "stop"
    jsonschema.validate(json.loads(first.text), json.loads(PET.source))
    assert ids(b"1")[0] not in first.token_ids and PIECES.index(b"true") not in first.token_ids
    assert first.logprobs is not None and len(first.logprobs) == len(first.token_ids)
    assert second.finish_reason == "length" or len(second.token_ids) >= 40
    assert third.finish_reason == "length" and re.fullmatch("(ab)*a?", third.text) and END not in third.token_ids


def test_the_end_of_the_grammar_ends_the_answer_whatever_else_is_asked() -> None:
    for changes in ({}, {"min_tokens": 20}, {"ignore_eos": True}, {"stop_token_ids": (0,)}):
        for result in everywhere(params(Grammar.regex("ab{3}"), **changes)):
            assert (result.text, result.finish_reason, result.stopped_by) == ("abbb", "stop", None)
    bare = worded_target(eos_token_ids=())
    assert [r.text for r in everywhere(params(Grammar.regex("ab{3}")), bare)] == ["abbb"] * 3


def test_stops_of_the_request_cut_a_grammar_short() -> None:
    (found,) = engine(TARGET, DRAFTER).generate([PROMPTS[0]], params(Grammar.regex("ab{9}"), stop=("bbb",)))
    assert (found.text, found.finish_reason, found.stopped_by) == ("a", "stop", "bbb")
    stop = PIECES.index(b"b")
    (found,) = engine(TARGET, DRAFTER).generate([PROMPTS[0]], params(Grammar.regex("ccb{9}"), stop_token_ids=(stop,)))
    assert (found.text, found.finish_reason, found.stopped_by) == ("cc", "stop", stop)


def test_special_tokens_are_written_where_rules_name_them_and_nowhere_else() -> None:
    rules = f'start: <[{SPECIAL}]> %json {{"type": "boolean"}} <call>'
    (found,) = engine(TARGET, DRAFTER).generate([PROMPTS[0]], params(Grammar.ebnf(rules)))
    assert found.token_ids[0] == found.token_ids[-1] == SPECIAL
    assert found.text in ("true", "false")
    (found,) = engine(TARGET).generate([PROMPTS[0]], params(Grammar.regex("(.|\n)*"), temperature=3.0, max_tokens=50))
    assert SPECIAL not in found.token_ids
    assert max(found.token_ids) <= END


@pytest.mark.parametrize("num_ahead", [0, 1])
def test_preemption_and_prefix_hits_change_nothing(num_ahead: int) -> None:
    batch = [PROMPTS[0] * 6 + [i] for i in range(6)]
    asked = [params(PET, seed=i) for i in range(6)]
    plain = engine(TARGET).generate(batch, asked)
    tight = ahead(engine(TARGET, DRAFTER, num_pages=31), num_ahead)
    for _ in range(2):
        assert tokens(tight.generate(batch, asked)) == tokens(plain)
    assert tight.engine.scheduler.num_preempted > 0
    assert_all_back(tight)


def test_long_prompts_do_not_keep_a_grammar_waiting() -> None:
    """While one prompt is computed chunk by chunk, cycles take their turns: answers under grammars too."""
    llm = ahead(engine(TARGET, DRAFTER, prefill_chunk=4, k=2), 1)
    first = llm.engine.add(PROMPTS[0], params(Grammar.regex("a{40}"), logit_bias={PIECES.index(b"ab"): -100.0}))
    for _ in range(4):
        llm.engine.step()
    llm.engine.add([5] * 100, SamplingParams(max_tokens=2))
    for _ in range(30):
        llm.engine.step()
    update = llm.engine.poll(first)
    assert update is not None and len(update.token_ids) > 5


def test_streams_and_aborts() -> None:
    llm = engine(TARGET, DRAFTER)
    whole = llm.generate([PROMPTS[0]], params(PET))[0]
    stream = llm.stream(PROMPTS[1], params(PET))
    next(stream)
    assert "".join(chunk.text for chunk in llm.stream(PROMPTS[0], params(PET))) == whole.text
    stream.close()
    assert not llm.engine.busy
    assert_all_back(llm)


@pytest.mark.parametrize("k", [0, 4])
def test_a_grammar_that_leaves_no_token_fails_alone(k: int) -> None:
    """The vocabulary has no ☂: nothing can follow "ab"; nor where every token that fits is a bad word."""
    other = SamplingParams(max_tokens=20)
    expected = engine(TARGET).generate([PROMPTS[1]], other)[0].token_ids
    bad = params(Grammar.regex("ab{4}"), bad_words=[[PIECES.index(b"b")]])
    for asked, written in ((params(Grammar.regex("ab☂")), b"ab"), (bad, b"a")):
        llm = engine(TARGET, DRAFTER if k else None, k=k)
        wrong, right = llm.engine.add(PROMPTS[0], asked), llm.engine.add(PROMPTS[1], other)
        got: dict[int, tuple[int, ...]] = {wrong: (), right: ()}
        failures = []
        while llm.engine.busy:
            llm.engine.step()
            for update in llm.engine.poll_all():
                got[update.request_id] += update.token_ids
                failures += [(update.request_id, update.failure)] if update.failure else []
        assert got[right] == expected
        assert b"".join(PIECES[token] for token in got[wrong]) == written
        ((failed, why),) = failures
        assert failed == wrong and "no token was left" in why
        assert_all_back(llm)
        with pytest.raises(RequestError, match="no token was left"):
            llm.generate([PROMPTS[0]], asked)
        assert not llm.engine.busy


def test_a_matcher_that_raises_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Matcher.after

    def raising(matcher: Matcher, answer: Any) -> Any:
        if len(answer) > 4 and broken.grammar is matcher:
            raise ValueError("out of order")
        return whole(matcher, answer)

    expected = engine(TARGET).generate(PROMPTS, params(PET))
    monkeypatch.setattr(Matcher, "after", raising)
    llm = engine(TARGET, DRAFTER)
    asked = [llm.engine.add(prompt, params(PET)) for prompt in PROMPTS]
    broken = llm.engine._sequences[asked[1]]
    got: dict[int, tuple[int, ...]] = dict.fromkeys(asked, ())
    failures = {}
    while llm.engine.busy:
        llm.engine.step()
        for update in llm.engine.poll_all():
            got[update.request_id] += update.token_ids
            failures[update.request_id] = update.failure
    assert [got[asked[i]] for i in (0, 2)] == [expected[i].token_ids for i in (0, 2)]
    assert got[asked[1]] == expected[1].token_ids[: len(got[asked[1]])]
    assert "out of order" in (failures[asked[1]] or "") and failures[asked[0]] is None
    assert_all_back(llm)


def test_an_interrupted_step_costs_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = engine(TARGET).generate(PROMPTS, params(PET))
    llm = engine(TARGET, DRAFTER)
    calls = 0
    read = Matcher.read

    def failing(matcher: Matcher, *args: Any) -> int:
        nonlocal calls
        calls += 1
        num_read = read(matcher, *args)
        if calls % 3 == 0:
            raise KeyboardInterrupt  # the matcher has read what the sequence has not got
        return num_read

    monkeypatch.setattr(Matcher, "read", failing)
    asked = [llm.engine.add(prompt, params(PET)) for prompt in PROMPTS]
    got: dict[int, tuple[int, ...]] = dict.fromkeys(asked, ())
    while llm.engine.busy:
        try:
            llm.engine.step()
        except KeyboardInterrupt:
            continue
        for update in llm.engine.poll_all():
            got[update.request_id] += update.token_ids
    assert calls > 3
    assert list(got.values()) == [result.token_ids for result in expected]


def test_what_cannot_be_honoured_is_refused_when_it_begins() -> None:
    llm = engine(TARGET)
    wrong = {
        "look-around": Grammar.regex("(?=a)b"),
        "unclosed group": Grammar.regex("("),
        "Unknown format": Grammar.json_schema({"type": "string", "format": "no"}),
        "empty text alone": Grammar.regex("a{0}"),
        "Unsatisfiable": Grammar.json_schema({"enum": []}),
        "EBNF": Grammar.ebnf('root ::= "a" | b'),
        "%llguidance": Grammar.ebnf('%llguidance {}\nstart: "a"'),
        "no token fits": Grammar.regex("☂"),
    }
    for words, grammar in wrong.items():
        with pytest.raises(RequestError, match=f"^grammar.*{words}"):
            llm.generate([PROMPTS[0]], params(grammar))
    with pytest.raises(RequestError, match="tokenizer"):
        engine(tiny_target()).generate([PROMPTS[0]], params(PET))
    with pytest.raises(RequestError, match="simulates"):
        engine(TARGET, DRAFTER, simulate_acceptance=(0.5,)).generate([PROMPTS[0]], params(PET))
    assert TOKENIZER is llm.tokenizer and not llm.engine.busy


def test_costs_under_grammars_are_kept_apart() -> None:
    llm = engine(TARGET, DRAFTER, control="auto")
    before = llm.describe()["control"]["costs"]
    for _ in range(3):
        llm.generate(PROMPTS, params(PET))
    described = llm.describe()["control"]
    assert described["costs"] == before
    assert described["under_grammars"]["costs"] != before
    llm.generate(PROMPTS, SamplingParams(max_tokens=20))
    assert llm.describe()["control"]["costs"] != before
    assert llm.describe()["control"]["under_grammars"] == described["under_grammars"]
