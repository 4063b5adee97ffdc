"""`outpace train` on a model directory that transformers wrote: answers, a drafter, a summary, and going on."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from models.checkpoints import make_checkpoint
from outpace.cli.main import INTERRUPTED, REFUSED, main
from outpace.training import journal
from outpace.training.store import AnswerStore
from server.running import SECONDS

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }} {{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant {% endif %}"
)
SPECIAL = ["<unk>", "<s>", "</s>"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    make_checkpoint(directory, "llama", vocab_size=259, bos_token_id=1, eos_token_id=2)
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    backend.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def command(model: Path, out: Path, *words: str) -> list[str]:
    fixed = ["--dtype", "float32", "--device", "cpu", "--batch-tokens", "512", "--max-length", "128"]
    sizes = ["--draft-vocab-size", "200", "--log-every", "1", "--ttt-steps", "3"]
    answers = ["--rows", "8", "--max-tokens", "24"] if "--prompts" in words else []
    return ["train", "--target", str(model), "--out", str(out), *fixed, *sizes, *answers, *words]


def test_from_prompts_to_a_drafter_and_on(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"turns": [f"Count to {i}.", "And on?"]}) + "\n" for i in range(24)))
    out = tmp_path / "out"
    assert main(command(model, out, "--prompts", str(prompts), "--steps", "2", "--json")) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["steps"] == 2
    assert {found["temperature"] for found in summary["accept_length"]} == {0.0, 0.8}
    assert json.loads((out / "config.json").read_text())["draft_vocab_size"] == 200
    assert AnswerStore(out / "answers").num_prompts_done == 24
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert records[0]["event"] == "answers"
    assert records[-1]["event"] == "done"
    (start,) = (record for record in records if record["event"] == "start")
    assert start["attention"].startswith("PyTorch's fused attention")
    assert (out / "model.safetensors").stat().st_mode == (out / "config.json").stat().st_mode, "as others may read it"

    assert main(command(model, out, "--steps", "2")) == REFUSED
    assert "--resume" in capsys.readouterr().err
    assert main(command(model, out, "--steps", "3", "--resume", "--no-validation")) == 0
    assert "step 3" in capsys.readouterr().err

    assert main(command(model, out, "--steps", "3", "--resume", "--wave", "4")) == REFUSED
    assert "--wave without --prompts" in capsys.readouterr().err
    assert main(command(model, out, "--steps", "3", "--resume", "--prompts", str(prompts))) == REFUSED
    assert "--prompts has no effect with --resume" in capsys.readouterr().err
    (out / "checkpoint").rename(tmp_path / "checkpoint")
    prompts.write_text(prompts.read_text().replace("Count to 3.", "Count to 33."))
    assert main(command(model, out, "--steps", "1", "--prompts", str(prompts))) == REFUSED
    assert "not the first 24 of these" in capsys.readouterr().err

    tuned = command(model, tmp_path / "tuned", "--prompts", str(prompts), "--steps", "1", "--init-from", str(out))
    assert main(tuned) == 0
    printed = capsys.readouterr().err
    assert "before: accept length" in printed
    assert "trained: accept length" in printed
    assert printed.endswith(f"\n  outpace doctor {model} --drafter {tmp_path / 'tuned'}\n")


def test_the_block_of_the_training_page_runs(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands, but for the model, fewer prompts, and steps instead of minutes."""
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    prompts, *lines = block.replace("\\\n", "").replace("seq 200", "seq 24").splitlines()
    monkeypatch.chdir(tmp_path)
    subprocess.run(prompts, shell=True, check=True)
    for line in lines:
        words = ["--steps 2" if pair == "--minutes 6" else pair for pair in re.split(r" +(?=--)", line)]
        asked = shlex.split(" ".join(words).replace("smollm2", str(model)))
        assert asked[0] == "outpace" and main(asked[1:]) == 0, capsys.readouterr().err
        assert words[0] != "outpace train" or "--steps 2" in words
    shown = capsys.readouterr()
    assert "an EAGLE-3 drafter, for" in shown.out
    assert "accept length" in shown.err, "the answer was drafted"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_says_the_command_that_goes_on(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    by: signal.Signals,
) -> None:
    prompts, out, show = tmp_path / "some prompts.jsonl", tmp_path / "out", journal.describe
    prompts.write_text("".join(json.dumps(f"Count to {i}.") + "\n" for i in range(24)))
    interrupting_at = "answers"

    def describe(record: dict[str, Any]) -> str:
        if record["event"] == interrupting_at:
            signal.raise_signal(by)
        return show(record)

    def interrupted(words: Sequence[str]) -> list[str]:
        """The command that it says goes on."""
        assert main(words) == INTERRUPTED
        *_, kept, line, end = capsys.readouterr().err.split("\n")[:-1]
        assert "kept; to go on:" in kept and not end
        name, *further = shlex.split(line)
        assert name == "outpace"
        return further

    monkeypatch.setattr(journal, "describe", describe)
    words = command(model, out, "--prompts", str(prompts), "--steps", "4", "--wave", "16", "--seed", "3")
    again = interrupted(words)
    assert sorted(again) == sorted(words)
    assert AnswerStore(out / "answers").num_prompts_done == 16
    interrupting_at = "step"
    again = interrupted(again)
    assert again[-1] == "--resume" and "--prompts" not in again and "--wave" not in again
    interrupting_at = "never"
    assert main(again) == 0
    printed = capsys.readouterr().err
    assert "step 2 " in printed and "step 1 " not in printed
    for number in (signal.SIGTERM, signal.SIGHUP):
        assert signal.getsignal(number) is signal.SIG_DFL, "after the command it is what it was"


IN_A_TERMINAL = (
    "import fcntl, sys, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); from outpace.cli.main import main; "
    "sys.exit(main(sys.argv[1:]))"
)


@pytest.mark.slow
def test_a_closed_terminal_keeps_a_checkpoint(model: Path, tmp_path: Path) -> None:
    """From then on nothing can be written to it."""
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    prompts.write_text("".join(json.dumps(f"Count to {i}.") + "\n" for i in range(24)))
    words = command(model, out, "--prompts", str(prompts), "--steps", "100000", "--no-validation")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, *words], stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        try:
            with os.fdopen(ours, "rb") as terminal:
                said = [terminal.readline()]
                while b"step 3 " not in said[-1]:
                    said.append(terminal.readline())
            assert process.wait(SECONDS) == INTERRUPTED, said
        finally:
            process.kill()
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["event"] == "done" and records[-1]["finished"] is False
    assert main(command(model, out, "--steps", str(records[-1]["steps"] + 1), "--resume", "--no-validation")) == 0


def test_nothing_to_learn_from_is_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(model, tmp_path / "out", "--steps", "1")) == REFUSED
    assert "give --prompts" in capsys.readouterr().err
    assert main(command(model, tmp_path / "out", "--steps", "1", "--minutes", "1")) == REFUSED
    assert "give exactly one" in capsys.readouterr().err
