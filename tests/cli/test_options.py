from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from cli.fakes import FakeLLM
from outpace import EngineConfig, SamplingParams
from outpace.cli import options
from outpace.cli.main import COMMANDS, build_parser, main, module_of
from outpace.grammar import Grammar, Kind


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    options.add_model_flags(parser)
    options.add_sampling_flags(parser)
    return parser.parse_args(["some-model", *words])


@pytest.mark.parametrize("settings", [EngineConfig, SamplingParams])
def test_every_setting_has_a_flag(settings: type) -> None:
    shown = vars(parse("--k", "3"))
    parser = argparse.ArgumentParser()
    options.add_model_flags(parser)
    options.add_sampling_flags(parser)
    flags = parser.format_help()
    for field in dataclasses.fields(settings):
        has_flag = field.name not in (*options.FOR_PROGRAMS, options.GRAMMAR)
        assert (f"--{field.name.replace('_', '-')}" in flags) == has_flag
    assert shown["k"] == 3


def test_each_kind_of_grammar_has_a_flag(tmp_path: Path) -> None:
    schema, rules = tmp_path / "schema.json", tmp_path / "rules.txt"
    schema.write_text('{"type": "object"}')
    rules.write_text('root ::= "a" root | "b"')
    wanted = {
        ("--json-schema", str(schema)): Grammar.json_object(),
        ("--regex", "[0-9]+"): Grammar.regex("[0-9]+"),
        ("--choice", "yes", "--choice", "no"): Grammar.choice(["yes", "no"]),
        ("--ebnf", str(rules)): Grammar.ebnf(rules.read_text()),
    }
    assert {grammar.kind for grammar in wanted.values()} == set(get_args(Kind))
    for words, grammar in wanted.items():
        assert options.sampling(parse(*words)).grammar == grammar


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--json-schema", "nowhere.json"), "argument --json-schema: cannot read nowhere.json: No such file"),
        (("--regex", ""), "argument --regex: grammar is ''"),
        (("--choice", ""), "argument --choice: a choice must be a text"),
        (("--regex", "a", "--choice", "b"), "argument --choice: not allowed with argument --regex"),
    ],
)
def test_a_wrong_grammar_is_refused_by_its_flag(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(*words)
    assert says in capsys.readouterr().err


def test_a_file_that_is_no_schema_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, held in enumerate((b"\xff", b"no JSON", b'{"type": "object", "not": {}}')):
        file = tmp_path / str(number)
        file.write_bytes(held)
        with pytest.raises(SystemExit):
            parse("--json-schema", str(file))
        assert "argument --json-schema: " in capsys.readouterr().err


def test_nothing_given_is_nothing_passed_on() -> None:
    args = parse()
    assert options.given(args, EngineConfig) == {}
    assert options.sampling(args) == SamplingParams()


def test_values_have_their_types() -> None:
    args = parse(
        *("--max-tokens", "7", "--temperature", "0.5", "--seed", "3", "--stop-token-ids", "1", "2"),
        *("--ignore-eos", "--no-prefix-reuse", "--max-k", "0"),
    )
    assert options.sampling(args) == SamplingParams(
        max_tokens=7, temperature=0.5, seed=3, stop_token_ids=(1, 2), ignore_eos=True, max_k=0
    )
    assert options.given(args, EngineConfig) == {"prefix_reuse": False}


def test_texts_are_given_one_a_flag_and_swallow_nothing() -> None:
    args = parse("--stop", "a b", "--stop=---", "--max-tokens", "7", "--include-stop-str-in-output")
    assert options.sampling(args) == SamplingParams(stop=("a b", "---"), max_tokens=7, include_stop_str_in_output=True)
    parser = argparse.ArgumentParser()
    options.add_sampling_flags(parser)
    parser.add_argument("prompt")
    assert parser.parse_args(["--stop", "###", "Hi"]).prompt == "Hi"
    assert "(default none; once for each)" in " ".join(parser.format_help().split())


def test_help_is_the_docstring_under_the_field() -> None:
    docs = options.field_docs(EngineConfig)
    assert docs["page_size"].startswith("Tokens in one KV page")
    assert "0 is greedy" in options.field_docs(SamplingParams)["temperature"]


def test_the_engine_gets_what_was_said(llm: FakeLLM) -> None:
    options.load_llm(parse("--drafter", "none", "--k", "5", "--aux-boundaries", "2", "15", "27"), max_rows=1)
    assert llm.made_with == {
        "model": "some-model",
        "drafter": None,
        "dtype": "auto",
        "device": "auto",
        "aux_boundaries": [2, 15, 27],
        "k": 5,
        "max_rows": 1,
    }


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those below it."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_in_words_that_can_be_typed(name: str) -> None:
    for parser in parsers(build_parser(name, import_module(module_of(name)))):
        known = {flag for action in parser._actions for flag in action.option_strings}
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                continue
            said, flags = str(action.help), action.option_strings
            assert len(said.partition("(default")[0]) > 5, f"{flags or action.dest} is not explained"
            assert not re.search(r"(^|[.:] )leaving", said), f"{flags} begins small"
            named = re.findall(r"\b[a-z]+_[a-z_]+\b", said)
            fields = [word for word in named if f"--{word.replace('_', '-')}" in known]
            assert not fields, f"{flags} names {fields} as Python does"
            times = [flag for flag in flags if re.search(r"timeout|interval|minutes|seconds|time-limit", flag)]
            assert not times or re.search("second|minute", said, re.IGNORECASE), f"{times} is without a unit"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_leaving_an_option_out_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for python in ("None", "()", "True", "False"):
        assert python not in text
    if name == "chat":
        assert "leaving it out takes the target's own limit" in text
    if name == "train":
        assert "without them --epochs 4" in text
