"""`outpace serve`: what its flags and its file become."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from outpace import EngineConfig
from outpace.cli import serve as command
from outpace.errors import ConfigError
from outpace.server.settings import ServerConfig, api_keys
from outpace.server.wire import Start


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Start, ServerConfig]]:
    """What the command would have served."""
    calls: list[tuple[Start, ServerConfig]] = []
    monkeypatch.setattr(command, "serve", lambda engine, config: calls.append((engine, config)))
    return calls


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return command.run(parser.parse_args(["serve", *words]))


def config_file(folder: Path, text: str) -> tuple[str, str]:
    (folder / "server.toml").write_text(text)
    return "--config", str(folder / "server.toml")


def test_nothing_given_is_every_default(served: Any) -> None:
    assert run("smollm2") == 0
    ((engine, config),) = served
    assert engine == Start(
        model="smollm2", drafter="auto", dtype="auto", device="auto", aux_boundaries=None, options={}
    )
    assert config == ServerConfig()
    assert config.host == "127.0.0.1"


def test_flags_win_over_the_file(served: Any, tmp_path: Path) -> None:
    words = config_file(
        tmp_path,
        'model = "from-file"\ndrafter = "none"\nport = 1234\nmax-rows = 3\nk = 2\napi_key = ["a", "b"]\n'
        "aux_boundaries = [1, 2, 3]\nrequest_timeout = 5\n",
    )
    run(*words, "--port", "99", "--k", "5", "--drafter", "auto")
    ((engine, config),) = served
    assert (engine.model, engine.drafter, engine.aux_boundaries) == ("from-file", "auto", (1, 2, 3))
    assert engine.options == {"k": 5, "max_rows": 3}
    assert (config.port, config.api_key, config.request_timeout) == (99, ("a", "b"), 5)
    run("from-flag", *words)
    assert served[1][0].model == "from-flag" and served[1][0].drafter is None and served[1][1].port == 1234


VALUES: dict[str, Any] = {
    "host": "::1",
    "served_name": "me",
    "api_key": ("a", "b"),
    "api_key_file": "keys.txt",
    "allow_origin": ("http://localhost:3000", "https://chat.example"),
    "tool_parser": "hermes",
    "control": "fixed",
    "simulate_acceptance": (0.5, 0.25),
    "prefix_reuse": False,
    "memory_fraction": 0.25,
    "max_body_bytes": 4096,
    "drafter": "./drafter",
    "dtype": "float32",
    "device": "cpu",
    "aux_boundaries": (1, 2, 3),
    "weights": "unpacked",
    "nccl": ("NCCL_PROTO=LL", "NCCL_P2P_LEVEL=SYS"),
    "sums": "library",
    "eager": True,
}
"""Of options that are no numbers, or not those below."""


def flag_words(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, tuple):
        if isinstance(value[0], str):
            return [word for text in value for word in (flag, text)]
        return [flag, *map(str, value)]
    return [flag, str(value)]


def as_toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


OPTIONS = [*command.MODEL_FIELDS[1:], *(field.name for kind in (EngineConfig, ServerConfig) for field in fields(kind))]


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_means_the_same_in_the_file(served: Any, tmp_path: Path, name: str) -> None:
    value = VALUES.get(name, 7)
    run("smollm2", *flag_words(name, value))
    run("smollm2", *config_file(tmp_path, f"{name} = {as_toml(value)}"))
    run("smollm2", *config_file(tmp_path, f"{name.replace('_', '-')} = {as_toml(value)}"))
    run("smollm2")
    assert served[0] == served[1] == served[2] != served[3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no model is named"),
        ("prot = 1", "there is no option 'prot'; did you mean port?"),
        ("port = 'x'", "port is 'x'"),
        ("port = 70000", "port is 70000; it must lie in 0 … 65535"),
        ("k = 99", "k is 99; it must lie in 0 … 15"),
        ("model = 3", "model"),
        ("aux_boundaries = ['a']", "aux_boundaries"),
        ("max_body_bytes = 1", "max_body_bytes is 1"),
        ("request_timeout = nan", "request_timeout is nan"),
        ("api_key = ['']", "api_key holds an empty key"),
        ("port = ", "server.toml"),
    ],
)
def test_a_wrong_file_is_refused(served: Any, tmp_path: Path, text: str, message: str) -> None:
    model = () if "model" in text or not text else ("smollm2",)
    with pytest.raises(ConfigError) as caught:
        run(*model, *config_file(tmp_path, text))
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_refused(served: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        run("smollm2", "--config", str(tmp_path / "nowhere"))


def test_keys_come_from_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# a comment\n\n one \ntwo\n")
    config = ServerConfig(api_key=("flag",), api_key_file=str(file))
    assert set(api_keys(config, "env, more ,")) == {b"flag", b"env", b"more", b"one", b"two"}
    assert api_keys(ServerConfig(), None) == ()
    assert api_keys(ServerConfig(), "caf\udce9") == (b"caf\xe9",), "what of the environment is no UTF-8 are its bytes"
    for nothing in ("", " , "):
        with pytest.raises(ConfigError, match="OUTPACE_API_KEY is set and holds no key"):
            api_keys(ServerConfig(), nothing)
    file.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="holds no key"):
        api_keys(config, None)


def test_no_name_means_two_things() -> None:
    of_server = {field.name for field in fields(ServerConfig)}
    assert not of_server & ({field.name for field in fields(EngineConfig)} | set(command.MODEL_FIELDS))


def test_the_http_side_never_loads_torch() -> None:
    code = "import sys, outpace.cli.serve; assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)
