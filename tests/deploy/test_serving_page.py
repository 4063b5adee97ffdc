"""docs/serving.md and deploy/: the commands run, what is named is there, and the examples are sound."""

from __future__ import annotations

import configparser
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from openai.resources.chat.completions import Completions as ChatCompletions
from openai.resources.completions import Completions
from pydantic import BaseModel

from outpace.cli import serve
from outpace.cli.main import build_parser
from outpace.cli.serve import read_config, start_of
from outpace.server.asking.conversation import AssistantMessage
from outpace.server.asking.protocol import ChatRequest, CompletionRequest, StreamOptions
from outpace.server.engine_client.jobs import Unavailable
from outpace.server.http.api_errors import DEFECT
from outpace.server.settings import ServerConfig
from server.models import make_model
from server.running import reserved_port, serving

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "serving.md").read_text()


def commands() -> str:
    """All shell blocks that are not marked, as one script."""
    return "\n".join(re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("page") / "smollm2")


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as found:
        yield found


def test_every_command_runs(model: Path, port: int, tmp_path: Path) -> None:
    (tmp_path / "smollm2").symlink_to(model)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "outpace").write_text(f'#!/bin/sh\nexec {sys.executable} -m outpace.cli.main "$@"\n')
    (tmp_path / "bin" / "outpace").chmod(0o755)
    script = commands().replace("8000", str(port))
    script = re.sub(r'(serve |model"?[=:] ?"|model = ")smollm2', r"\1./smollm2", script)
    env = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    with (tmp_path / "said").open("w+") as said:
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=env, stdout=said, stderr=said, process_group=0
        )
        try:
            code = shell.wait(240)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)  # a server that a failed command left behind
        output = (tmp_path / "said").read_text()
    log = (tmp_path / "server.log").read_text()
    assert code == 0, f"{output[-3000:]}\n{log[-2000:]}"
    assert '"chat.completion"' in output and "outpace_running 0.0" in output
    assert json.loads((tmp_path / "state.json").read_text())["settings"]["kernels"]


def test_every_metric_that_is_named_is_there(model: Path) -> None:
    table = PAGE.split("## Metrics")[1].split("On a GPU")[0]
    named = set(re.findall(r"`(outpace_\w+)`", table))
    assert len(named) > 15
    with serving(model, "--drafter", "none", "--num-pages", "40") as server:
        text = server.get("/metrics").text
    there = {re.sub(r"_total$", "", name) for name in re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)}
    assert named - {"outpace_weighed_k", "outpace_expected_accept_length", "outpace_break_even"} <= there
    assert {name for name in there if not name.endswith("_created")} <= named


def test_the_example_config_is_sound() -> None:
    settings = read_config(DEPLOY / "server.toml")
    assert start_of(settings).model == "smollm2"
    names = ServerConfig.__dataclass_fields__
    ServerConfig(**{name: value for name, value in settings.items() if name in names})


def test_the_unit_drains_longer_than_the_server_and_starts_a_real_command() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read(DEPLOY / "outpace.service")
    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) > read_config(DEPLOY / "server.toml")["drain_timeout"]
    program, *words = shlex.split(service["ExecStart"])
    assert program.endswith("/bin/outpace")
    args = build_parser("serve", serve).parse_args(words)
    assert str(args.config) == "/etc/outpace/server.toml" and args.api_key_file == "%d/api-keys"


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("this machine has no systemd-analyze")
    text = (DEPLOY / "outpace.service").read_text().replace("/opt/outpace/.venv/bin/outpace", "/bin/true")
    (tmp_path / "outpace.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "outpace.service")], capture_output=True, text=True
    )
    ours = [line for line in done.stderr.splitlines() if "outpace.service" in line]
    assert done.returncode == 0 and not ours, done.stderr


INSTRUCTIONS = {
    *(
        "FROM",
        "RUN",
        "WORKDIR",
        "COPY",
        "USER",
        "ENV",
        "VOLUME",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    )
}


def test_the_dockerfile_copies_what_there_is_and_runs_what_there_is() -> None:
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    steps = [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]
    assert {name for name, _ in steps} <= INSTRUCTIONS and steps[0][0] == "FROM"
    assert re.fullmatch(r"[\w/]+:[\w.-]+", steps[0][1]), "a tag that does not move from one major version to another"
    for name, rest in steps:
        if name == "COPY":
            assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest
    last = dict(steps)
    assert last["USER"] == "outpace", "not root"
    assert [name for name, _ in steps].index("USER") > max(i for i, (name, _) in enumerate(steps) if name == "RUN")
    program, *words = json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"])
    assert program == "outpace"
    args = build_parser("serve", serve).parse_args(words)
    assert (args.model, args.host, args.port) == ("smollm2", "0.0.0.0", 8000)
    check = json.loads(last["HEALTHCHECK"].split("CMD", 1)[1])
    assert check[:2] == ["python", "-c"] and ":8000/ready" in check[2]
    compile(check[2], "HEALTHCHECK", "exec")


def test_every_event_of_the_log_is_in_the_table() -> None:
    table = PAGE.split("## Logs")[1].split("\n\n`/`")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    sources = [path.read_text() for path in (ROOT / "src" / "outpace" / "server").rglob("*.py")]
    assert named == {event for text in sources for event in re.findall(r'\b_?tell\("([^"]+)"', text)}


def rows_of(heading: str) -> list[list[str]]:
    """The names in code in each cell of a section's table."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def in_code(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_every_error_is_in_the_table() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src" / "outpace" / "server").rglob("*.py"))
    codes = set(re.findall(r'code="(\w+)"', sources)) - {"invalid_request"}  # nothing is known to raise that one
    codes.add(DEFECT)
    unavailable = set(get_args(get_type_hints(Unavailable.__init__)["code"]))
    assert {code for _, cell, _ in rows_of("Errors") for code in in_code(cell)} == codes | unavailable


def test_every_field_that_is_named_is_taken_and_every_other_is_openais() -> None:
    named = {name for cell, _ in rows_of("Requests") for name in in_code(cell)} - {"stream_options"}
    models: tuple[type[BaseModel], ...] = (ChatRequest, CompletionRequest, StreamOptions, AssistantMessage)
    taken = {name for model in models for name in model.model_fields}
    assert named <= taken
    create = (Completions.create, ChatCompletions.create)
    theirs = {name for function in create for name in inspect.signature(function).parameters}
    theirs |= {"include_usage", "role", "content", "name", "tool_calls", "annotations"}
    assert taken - theirs <= named
