from __future__ import annotations

import io
import json

import pytest

from cli.fakes import FakeLLM, said
from outpace import RequestError
from outpace.cli.main import main


def test_the_answer_is_on_stdout_and_figures_on_stderr(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "fake", "Hi", "--max-tokens", "9"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "Hello there.\n"
    assert "12 tokens" in printed.err
    assert "accept length 2.00 (4.0 drafts a cycle)" in printed.err
    prompt, params = llm.asked[0]
    assert said(prompt) == "user: Hi\n"
    assert params.max_tokens == 9


def test_json_is_all_there_is_on_stdout(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "fake", "Hi", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == "Hello there."
    assert (found["finish_reason"], found["stopped_by"]) == ("stop", "#")
    assert found["stats"]["accept_length"] == 2.0
    assert found["stats"]["k"] == 4
    assert said(found["token_ids"]) == "Hello there."


def test_stop_strings_reach_the_engine(llm: FakeLLM) -> None:
    assert main(["generate", "fake", "--stop", "\n\n", "--stop", "Q:", "Hi"]) == 0
    assert llm.asked[0][1].stop == ("\n\n", "Q:")


def test_raw_leaves_the_text_alone(llm: FakeLLM) -> None:
    main(["generate", "fake", "Hi", "--raw"])
    assert said(llm.asked[0][0]) == "Hi"


def test_a_model_without_a_template_continues_texts(llm: FakeLLM) -> None:
    llm.tokenizer.chat_template = None
    main(["generate", "fake", "Hi"])
    assert said(llm.asked[0][0]) == "Hi"


def test_dash_reads_stdin(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    main(["generate", "fake", "-", "--raw"])
    assert said(llm.asked[0][0]) == "from a pipe"


def test_token_ids_need_no_tokenizer(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.tokenizer = None
    assert main(["generate", "fake", "1, 2 3", "--ids"]) == 0
    assert llm.asked[0][0] == [1, 2, 3]
    assert capsys.readouterr().out.startswith("72 101 108 ")


@pytest.mark.parametrize(
    ("words", "message"),
    [(["text"], "give token ids, with --ids"), (["1 x", "--ids"], "not a list of token ids")],
)
def test_what_cannot_be_read_is_refused(
    llm: FakeLLM, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.tokenizer = None
    assert main(["generate", "fake", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_refused_request_is_one_line(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.error = RequestError("the prompt is empty; give at least one token")
    assert main(["generate", "fake", ""]) == 2
    assert capsys.readouterr().err == "outpace: the prompt is empty; give at least one token\n"


def test_wrong_parameters_are_refused_before_the_model_is_loaded(llm: FakeLLM) -> None:
    assert main(["generate", "fake", "Hi", "--top-p", "7"]) == 2
    assert llm.made_with == {}
