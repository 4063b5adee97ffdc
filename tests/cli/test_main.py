from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

import outpace
from outpace.cli import main as cli
from outpace.errors import CheckpointError, ConfigError


def command(action: object) -> SimpleNamespace:
    """A command called demo that does one thing."""

    def run(args: object) -> int:
        if isinstance(action, BaseException):
            raise action
        assert isinstance(action, int)
        return action

    return SimpleNamespace(add_parser=lambda subparsers: subparsers.add_parser("demo"), run=run)


@pytest.mark.parametrize(
    ("action", "code"),
    [(0, 0), (1, 1), (ConfigError("k is 99"), 2), (CheckpointError("no such file"), 2), (KeyboardInterrupt(), 130)],
)
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, action: object, code: int) -> None:
    monkeypatch.setattr(cli, "_load", lambda name: command(action))
    assert cli.main(["demo"]) == code


def test_our_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "_load", lambda name: command(ConfigError("k is 99; it must lie in 0 … 15")))
    cli.main(["demo"])
    printed = capsys.readouterr()
    assert printed.err == "outpace: k is 99; it must lie in 0 … 15\n"
    assert printed.out == ""


def test_other_errors_are_bugs_and_show_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_load", lambda name: command(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["demo"])


def test_an_interrupt_while_a_command_is_being_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_load", interrupted)
    assert cli.main(["demo"]) == 130


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"outpace {outpace.__version__}\n"


@pytest.mark.parametrize("words", [[], ["nonsense"], ["demo", "--nonsense"]])
def test_nonsense_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert "usage: outpace" in capsys.readouterr().err


def test_help_lists_every_command_without_torch() -> None:
    code = (
        "import sys; from outpace.cli.main import main\n"
        "try: main(['--help'])\n"
        "finally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown = " ".join(done.stdout.split())
    for name, summary in cli.COMMANDS.items():
        assert f"{name} {summary}" in shown


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_teaches(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main([name, "--help"])
    text = capsys.readouterr().out
    assert "example" in text
    assert f"outpace {name}" in text
    assert "--json" in text or name == "serve", "a server's output is its log"


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_module_keeps_the_contract(name: str) -> None:
    module = import_module(cli.module_of(name))
    assert callable(module.add_parser)
    assert callable(module.run)
