from __future__ import annotations

import io
import json

import pytest

from cli.fakes import FakeLLM, said
from outpace import RequestError
from outpace.cli.main import main


def talk(monkeypatch: pytest.MonkeyPatch, *lines: str, flags: tuple[str, ...] = ()) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return main(["chat", "fake", *flags])


def test_the_conversation_is_remembered(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talk(monkeypatch, "Hi", "", "And?", flags=("--system", "Be brief.")) == 0
    assert len(llm.asked) == 2, "an empty line asks nothing"
    assert said(llm.asked[1][0]) == "system: Be brief.\nuser: Hi\nassistant: Hello there.\nuser: And?\n"
    printed = capsys.readouterr()
    assert printed.out == "Hello there.\nHello there.\n"
    assert printed.err.count("accept length 2.00") == 2
    assert printed.err.count("tok/s") == 2


def test_reset_keeps_only_the_system_message(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(monkeypatch, "Hi", "/reset", "Again", flags=("--system", "Be brief."))
    assert said(llm.asked[1][0]) == "system: Be brief.\nuser: Again\n"


def test_quit_leaves(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert talk(monkeypatch, "/quit", "Hi") == 0
    assert llm.asked == []


def test_an_unknown_command_lists_those_there_are(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(monkeypatch, "/what")
    assert "/reset" in capsys.readouterr().err
    assert llm.asked == []


def test_json_is_one_line_an_answer(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(monkeypatch, "Hi", "And?", flags=("--json",))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == ["Hello there.", "Hello there."]
    assert lines[0]["stats"]["accept_length"] == 2.0
    assert (lines[0]["finish_reason"], lines[0]["stopped_by"]) == ("stop", "#")


def test_stop_strings_reach_the_engine(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert talk(monkeypatch, "Hi", flags=("--stop", "###")) == 0
    assert llm.asked[0][1].stop == ("###",)


def test_a_refused_message_is_taken_back(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.error = RequestError("the prompt has 9000 tokens")
    assert talk(monkeypatch, "Too long", "Hi") == 0
    assert said(llm.asked[1][0]) == "user: Hi\n"
    assert "/reset starts a new conversation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ("Too long", RequestError("the prompt has 9000 tokens"), "the prompt has 9000 tokens"),
        ("/help", None, "/help gets no answer; the commands are /reset, /help and /quit"),
        ("/what", None, "/what gets no answer; the commands are /reset, /help and /quit"),
        ("Hi", KeyboardInterrupt(), "stopped"),
    ],
)
def test_json_of_a_message_without_an_answer_is_an_error(
    said: str,
    error: BaseException | None,
    message: str,
    llm: FakeLLM,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(llm, "error", error)
    assert talk(monkeypatch, said, flags=("--json",)) == 0
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()
    assert json.loads(line) == {"error": message}
    assert printed.err == ""


def test_ctrl_c_stops_an_answer_and_not_the_conversation(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(llm, "error", KeyboardInterrupt())
    assert talk(monkeypatch, "Hi", "Again") == 0
    assert len(llm.asked) == 2
    assert said(llm.asked[1][0]) == "user: Again\n", "a message without any answer is taken back"
    assert "(stopped)" in capsys.readouterr().err


def test_a_model_without_a_template_cannot_chat(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.tokenizer.chat_template = None
    assert talk(monkeypatch, "Hi") == 2
    assert "generate fake --raw" in capsys.readouterr().err
