"""Bad input of every command, against a real tiny checkpoint: one clear line, exit code 2, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from engine.tiny import tiny_target
from outpace.cli.main import main
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import save_drafter

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model without a tokenizer, one of another vocabulary, a drafter for the first, and odd files."""
    folder = tmp_path_factory.mktemp("bad")
    for name, changes in {"model": {}, "other": {"vocab_size": 80}}.items():
        config = transformers.LlamaConfig(**SIZES | changes, tie_word_embeddings=False)
        transformers.LlamaForCausalLM(config).save_pretrained(folder / name)
    save_drafter(Drafter.create(tiny_target().model, draft_ids=torch.arange(3, 40)), folder / "drafter")
    (folder / "empty").mkdir()
    (folder / "file.txt").write_text("x")
    (folder / "junk.gguf").write_bytes(b"junk" * 10)
    (folder / "bad.jsonl").write_text("{nope\n")
    return folder


GENERATE = "generate model 1,2,3 --ids --max-tokens 4"
LONG = ",".join(["1"] * 200)

REFUSED = {
    # what is named is not there, or something else
    "generate ./nowhere hi": "there is no model './nowhere'",
    "chat ./nowhere": "there is no model './nowhere'",
    "inspect ./nowhere": "there is no model './nowhere'",
    "demo ./nowhere": "there is no model './nowhere'",
    "train --target ./nowhere --out out": "there is no model './nowhere'",
    "inspect smolm2": "there is no model 'smolm2'",
    "generate empty hi": "has no config.json",
    "generate file.txt hi": "not a .gguf",
    "inspect junk.gguf": "does not begin with 'GGUF'",
    f"{GENERATE} --drafter ./nowhere": "there is no model './nowhere'",
    f"{GENERATE} --drafter empty": "has no config.json",
    "train --target model --out out --prompts ./nowhere": "give a JSONL file",
    "train --target model --out out --prompts bad.jsonl": "bad.jsonl line 1",
    "train --target model --out file.txt": "name a directory",
    "train --target model --out file.txt/deeper": "name a directory",
    "train --target model --out out": "give --prompts",
    "train --target model --out out --resume": "leave --resume out",
    # what does not fit together
    "generate other 1,2 --ids --drafter drafter": "vocab_size is 61, the target's is 80: it was made for another",
    "inspect drafter --target other": "vocab_size is 61, the target's is 80: it was made for another",
    f"{GENERATE} --drafter model": "EAGLE-3 drafters of one layer are served",
    "generate drafter 1,2 --ids": "it is a drafter: pass it as drafter",
    "inspect drafter": "--target MODEL",
    "inspect model --aux-boundaries 0 1 2": "leave them out",
    f"{GENERATE} --aux-boundaries 0 1 2": "leave them out",
    f"{GENERATE} --drafter drafter --aux-boundaries 0 1 99": "99 is outside 0 … 3",
    "demo model": "name an EAGLE-3 drafter with --drafter",
    "demo model --drafter drafter --k 0": "a k of 1 or more",
    "demo model --drafter drafter": "without a tokenizer",
    "chat model": "has no chat template",
    "generate model hi": "give token ids, with --ids",
    # values out of range
    f"{GENERATE} --drafter drafter --k 16": "k is 16; it must lie in 0 … 15",
    "demo model --drafter drafter --k 16": "k is 16; it must lie in 0 … 15",
    "chat model --k -1": "k is -1; it must lie in 0 … 15",
    f"{GENERATE} --max-k 16": "max_k is 16; it must lie in 0 … 15",
    f"{GENERATE} --dtype int3": "dtype is 'int3'; it must be auto, float32",
    f"{GENERATE} --device tpu": "device is 'tpu'; it must be auto, cpu",
    "train --target model --out out --dtype int3": "dtype is 'int3'; it must be auto, float32",
    "train --target model --out out --steps 0": "steps is 0; it must lie in 1",
    f"{GENERATE} --temperature nan": "temperature is nan; it must lie in 0 … 100",
    f"{GENERATE} --memory-fraction nan": "memory_fraction is nan",
    f"{GENERATE} --memory-fraction 1e-12": "raise memory_fraction",
    f"{GENERATE} --num-pages 99999999": "num_pages is 99999999",
    f"{GENERATE} --stop-token-ids 61": "token id 61 is unknown; ids are 0 … 60",
    "generate model 61 --ids": "token id 61 is unknown; ids are 0 … 60",
    "generate model one,two --ids": "write them like 1,15043,29892",
    # contexts
    f"{GENERATE} --max-context 129": "max_context is 129; the model was made for 128",
    f"generate model {LONG} --ids": "200 tokens; the context holds 128",
    f"{GENERATE} --max-context 3": "shorten the prompt to 2, or raise max_context",
}


@pytest.mark.parametrize("line", REFUSED)
def test_one_clear_line(
    line: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    assert main(line.split()) == 2
    said = [text for text in capsys.readouterr().err.splitlines() if text and not text.startswith("loading ")]
    assert len(said) == 1, said
    assert said[0].startswith("outpace: ")
    assert REFUSED[line] in said[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("generate model hi --k four", "argument --k: invalid int value: 'four'"),
        ("chat model --temperature warm", "argument --temperature: invalid float value: 'warm'"),
        ("train --target model", "required: --out"),
        ("inspect", "required: MODEL_OR_DRAFTER"),
        ("serve smollm2 models/8b", "'models/8b' is one argument too many"),
        ("generate model hi -- --k", "'--k' is one argument too many"),
    ],
)
def test_what_is_no_number_or_missing_or_too_much(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(line.split())
    assert message in capsys.readouterr().err.splitlines()[-1]


MISTYPED = {
    "serve --tensor-paralel 2": (
        "outpace serve",
        "there is no option --tensor-paralel; did you mean --tensor-parallel?",
    ),
    "serve smollm2 --max_rows=4": ("outpace serve", "there is no option --max_rows; did you mean --max-rows?"),
    "train --taget model --out x": ("outpace train", "there is no option --taget; did you mean --target?"),
    "demo --quik": ("outpace demo", "there is no option --quik; did you mean --quick?"),
    "chat smollm2 --zzz": ("outpace chat", "there is no option --zzz"),
    "chat smollm2 -q": ("outpace chat", "there is no option -q"),
    "serve m --control fixd": (
        "outpace serve",
        "argument --control: 'fixd' is none of auto, fixed; did you mean fixed?",
    ),
    "experiment run a --directry x": (
        "outpace experiment run",
        "there is no option --directry; did you mean --directory?",
    ),
    "experiment rnu a": ("outpace experiment", "there is no command 'rnu'; did you mean run?"),
    "serv smollm2": ("outpace", "there is no command 'serv'; did you mean serve?"),
    "--vresion": ("outpace", "there is no option --vresion; did you mean --version?"),
}


@pytest.mark.parametrize("line", MISTYPED)
def test_what_is_mistyped_is_named_with_what_is_near(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(line.split())
    where, message = MISTYPED[line]
    printed = capsys.readouterr()
    usage, help_line, said = printed.err.splitlines()
    assert usage.startswith(f"usage: {where} [options]")
    assert help_line.strip() == f"{where} --help"
    assert said == f"{where}: {message}"
    assert printed.out == ""


def test_the_beginning_of_an_option_stands_for_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(here / "model"), "1,2", "--ids", "--max-tok", "1", "--temp=0", "--json"]) == 0
    assert '"finish_reason": "length"' in capsys.readouterr().out


def test_a_path_to_a_model_is_not_taken_for_its_own_drafter(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(here / "model"), "1,2,3", "--ids", "--max-tokens", "4"]) == 0
    assert "plain decoding" in capsys.readouterr().err
