"""Whole runs on a target small enough to learn in seconds: acceptance rises, and a run that was cut goes on exactly."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from errno import EIO
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outpace.errors import ConfigError, DrafterError
from outpace.models.drafters.checkpoint import load_drafter
from outpace.training import trainer
from outpace.training.answers import AnswerConfig
from outpace.training.checkpoint import load_checkpoint
from outpace.training.folder import RunFolder
from outpace.training.interrupt import Interrupt, signals_as_ctrl_c
from outpace.training.journal import Journal, describe
from outpace.training.pipeline import train_drafter
from outpace.training.recipe import TrainConfig, peak_rate
from outpace.training.validate import ValidateConfig
from training.learnable import conversations, learnable_target

CONFIG = TrainConfig(
    steps=60,
    batch_tokens=1024,
    max_length=64,
    learning_rate=6e-3,
    average=0.9,
    ttt_steps=4,
    draft_vocab_size=56,
    chunk_rows=256,
    log_every=20,
    num_held_out=12,
)
VALIDATION = ValidateConfig(max_tokens=24, num_prompts=8, max_rows=8)


def train(out: Path, config: TrainConfig = CONFIG, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    records: list[dict[str, Any]] = []
    out.mkdir(exist_ok=True)
    folder = RunFolder(out=out)
    summary = train_drafter(learnable_target(), conversations(), config, folder, records.append, **options)
    return summary, records


def test_acceptance_rises_and_fine_tuning_goes_on_from_there(tmp_path: Path) -> None:
    summary, records = train(tmp_path / "fresh", validation=VALIDATION)
    lengths = [r["accept_length"] for r in records if r["event"] == "step"]
    assert lengths[-1] > lengths[0] + 0.3
    assert summary["accept_length_before"] is None
    greedy = summary["accept_length"][0]
    assert greedy["accept_length"] > 1.5
    assert all(isinstance(describe(record), str) for record in records)

    short = replace(CONFIG, steps=4, learning_rate=None)
    tuned, records = train(tmp_path / "tuned", short, validation=VALIDATION, init_from=str(tmp_path / "fresh"))
    assert tuned["accept_length_before"][0]["accept_length"] == pytest.approx(greedy["accept_length"], abs=1e-6)
    assert records[0]["coverage"] is None
    assert records[0]["draft_vocab_size"] == 56
    assert records[0]["init_from"] == str(tmp_path / "fresh")


def test_the_log_says_how_a_run_can_be_repeated(tmp_path: Path) -> None:
    config = replace(CONFIG, steps=1, learning_rate=None, draft_vocab_size=None, seed=7)
    _, (start, *_) = train(tmp_path / "run", config)
    resolved = TrainConfig(**json.loads(json.dumps(start["config"])))
    assert resolved.learning_rate == start["peak_rate"] == pytest.approx(peak_rate(config, 32, fine_tuning=False))
    assert resolved.draft_vocab_size == start["draft_vocab_size"]
    assert resolved.intermediate_size == 48
    assert replace(resolved, learning_rate=None, draft_vocab_size=None, intermediate_size=None) == config
    assert start["machine"]["torch"] == torch.__version__
    assert start["machine"]["device"].startswith("cpu")


def test_a_resumed_run_is_bit_identical(tmp_path: Path) -> None:
    config = replace(CONFIG, steps=8, accumulate=2, save_minutes=1e-9)
    train(tmp_path / "whole", config)

    class CutError(Exception):
        pass

    def cut(record: dict[str, Any]) -> None:
        if record["event"] == "held out" and record["step"] == 3:
            raise CutError

    (tmp_path / "cut").mkdir()
    with pytest.raises(CutError):
        train_drafter(learnable_target(), conversations(), config, RunFolder(out=tmp_path / "cut"), cut)
    _, records = train(tmp_path / "cut", config, resume=True)
    assert next(r["step"] for r in records if r["event"] == "held out") == 4
    whole, resumed = (load_checkpoint(tmp_path / name / "checkpoint") for name in ("whole", "cut"))
    assert whole is not None
    assert resumed is not None
    assert replace(whole[0], seconds=0.0) == replace(resumed[0], seconds=0.0)
    assert whole[1].keys() == resumed[1].keys()
    for name, tensor in whole[1].items():
        assert torch.equal(tensor, resumed[1][name]), name


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_interrupted_and_resumed_is_bit_identical(tmp_path: Path, by: signal.Signals) -> None:
    config = replace(CONFIG, steps=6, accumulate=2, log_every=1)
    whole, _ = train(tmp_path / "whole", config)
    told: list[str] = []
    interrupt = Interrupt(tell=lambda: told.append("stopping"))
    records: list[dict[str, Any]] = []

    def interrupting(record: dict[str, Any]) -> None:
        records.append(record)
        if record["event"] == "step" and record["step"] == 3:
            signal.raise_signal(by)

    (tmp_path / "cut").mkdir()
    folder = RunFolder(out=tmp_path / "cut")
    first = train_drafter(
        learnable_target(), conversations(), config, folder, interrupting, validation=VALIDATION, interrupt=interrupt
    )
    assert told == ["stopping"]
    assert (first["steps"], first["finished"], first["accept_length"]) == (3, False, None)
    assert [record["event"] for record in records] == ["start", "step", "step", "step", "done"], "nothing is measured"
    assert describe(records[-1]) == "stopped at step 3: accept length not measured"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "after the run it is what it was"
    assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGHUP) is signal.SIG_DFL

    second, _ = train(tmp_path / "cut", config, resume=True)
    assert (second["steps"], second["tokens"], second["finished"]) == (whole["steps"], whole["tokens"], True)
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_stops_at_once(second: signal.Signals) -> None:
    with Interrupt(tell=lambda: None) as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGHUP])
def test_a_hangup_does_not_hurry(first: signal.Signals) -> None:
    """A closed terminal sends several."""
    told: list[None] = []
    with Interrupt(tell=lambda: told.append(None)) as interrupt:
        for number in (first, signal.SIGHUP, signal.SIGHUP):
            signal.raise_signal(number)
        assert interrupt.asked and len(told) == 1
    with signals_as_ctrl_c():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)  # what is cleaned up meanwhile is not cut


def test_a_hangup_that_was_ignored_still_is() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_ctrl_c(), Interrupt(tell=lambda: None) as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupt.asked
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("fine_tuned", [False, True])
def test_a_run_that_is_killed_before_its_first_checkpoint_leaves_no_drafter(tmp_path: Path, fine_tuned: bool) -> None:
    """One that has learned nothing would look finished."""
    train(tmp_path / "other", replace(CONFIG, steps=1))
    options: dict[str, Any] = {"init_from": str(tmp_path / "other")} if fine_tuned else {}

    class KilledError(Exception):
        pass

    def kill(record: dict[str, Any]) -> None:
        if record["event"] == "step":
            raise KilledError

    (tmp_path / "run").mkdir()
    folder, config = RunFolder(out=tmp_path / "run"), replace(CONFIG, steps=4, log_every=1)
    with pytest.raises(KilledError):
        train_drafter(learnable_target(), conversations(), config, folder, kill, validation=VALIDATION, **options)
    assert not list((tmp_path / "run").iterdir())
    with pytest.raises(DrafterError, match=r"config\.json"):
        load_drafter(tmp_path / "run", learnable_target().model, dtype=torch.float32, device="cpu")


def test_a_checkpoint_never_comes_without_its_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed between the two is resumed from the checkpoint before, or begun anew."""
    kept = trainer.save_checkpoint

    def killed_before(folder: Path, *rest: Any) -> Path:
        assert (tmp_path / "run" / "config.json").exists()
        return kept(folder, *rest)

    monkeypatch.setattr(trainer, "save_checkpoint", killed_before)
    train(tmp_path / "run", replace(CONFIG, steps=1))


@pytest.mark.parametrize("changes", [{"seed": 1}, {"learning_rate": 1e-3}, {"batch_tokens": 512}, {"decay": 0.5}])
def test_a_run_is_not_resumed_with_other_settings(tmp_path: Path, changes: dict[str, Any]) -> None:
    train(tmp_path / "run", replace(CONFIG, steps=1))
    with pytest.raises(ConfigError, match=f"{next(iter(changes))} is .* begun with"):
        train(tmp_path / "run", replace(CONFIG, steps=2, **changes), resume=True)


def test_fine_tuning_is_not_resumed_as_training(tmp_path: Path) -> None:
    """Its learning rate is another."""
    config = replace(CONFIG, steps=1, learning_rate=None)
    train(tmp_path / "fresh", config)
    train(tmp_path / "tuned", config, init_from=str(tmp_path / "fresh"))
    with pytest.raises(ConfigError, match=r"learning_rate is .*fine-tuning with its drafter"):
        train(tmp_path / "tuned", replace(config, steps=2), resume=True)


def test_the_embeddings_and_the_target_stay_as_they_are(tmp_path: Path) -> None:
    before = {name: p.clone() for name, p in learnable_target().model.named_parameters()}
    train(tmp_path / "run", replace(CONFIG, steps=2))
    assert all(torch.equal(p, before[name]) for name, p in learnable_target().model.named_parameters())
    tensors = {k: v for path in (tmp_path / "run").glob("*.safetensors") for k, v in load_file(path).items()}
    assert not any("embed" in name for name in tensors)


def test_a_checkpoint_is_neither_overwritten_nor_made_up(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no checkpoint"):
        train(tmp_path / "run", resume=True)
    train(tmp_path / "run", replace(CONFIG, steps=1))
    with pytest.raises(ConfigError, match="holds a checkpoint"):
        train(tmp_path / "run")
    with pytest.raises(ConfigError, match="this drafter needs"):
        train(tmp_path / "run", resume=True, init_from=_other_drafter(tmp_path))


def _other_drafter(tmp_path: Path) -> str:
    train(tmp_path / "other", replace(CONFIG, steps=1, draft_vocab_size=40))
    return str(tmp_path / "other")


def test_minutes_end_a_run(tmp_path: Path) -> None:
    config = replace(CONFIG, steps=None, minutes=0.02)
    first, _ = train(tmp_path / "run", config, stop_after=0.005)
    assert not first["finished"]
    second, _ = train(tmp_path / "run", config, resume=True)
    assert second["finished"]
    assert 0 < first["steps"] < second["steps"] < 2000


def test_a_call_that_has_no_time_for_a_step_leaves_what_the_next_goes_on_from(tmp_path: Path) -> None:
    whole, _ = train(tmp_path / "whole", replace(CONFIG, steps=3))
    first, _ = train(tmp_path / "run", replace(CONFIG, steps=3), stop_after=0.0, validation=VALIDATION)
    assert (first["steps"], first["finished"], first["accept_length"]) == (0, False, None)
    assert not (tmp_path / "run" / "config.json").exists(), "what has not learned is no drafter"
    second, _ = train(tmp_path / "run", replace(CONFIG, steps=3), resume=True)
    assert (second["steps"], second["tokens"]) == (whole["steps"], whole["tokens"])
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "run")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_learning_rate_rises_then_falls() -> None:
    rates = [CONFIG.rate_at(step / 100) for step in range(101)]
    assert rates[0] < 0.1
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    assert rates[-1] == pytest.approx(CONFIG.final_rate)
    assert peak_rate(replace(CONFIG, learning_rate=None), 576, fine_tuning=False) == pytest.approx(1.5e-3)
    assert peak_rate(replace(CONFIG, learning_rate=None), 4096, fine_tuning=True) < 6e-5


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": None},
        {"minutes": 1.0},
        {"steps": 0},
        {"decay": 1.5},
        {"ttt_steps": 0},
        {"clip": 0.0},
        {"coverage": 2.0},
        {"beta1": 1.0},
        {"beta2": -0.1},
        {"seed": -1},
        {"seed": 1.5},
        {"draft_vocab_size": 0},
        {"max_draft_vocab_size": 0},
        {"intermediate_size": 0},
        {"num_held_out": -1},
        {"save_minutes": -1.0},
        {"save_minutes": float("nan")},
        {"batch_tokens": 32},
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        replace(CONFIG, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"wave": 0},
        {"max_tokens": 0},
        {"max_prompt": 0},
        {"greedy_share": 1.5},
        {"low_temperature": -1.0},
        {"high_temperature": 0.5},
        {"seed": -1},
    ],
)
def test_answers_cannot_be_asked_for_out_of_range(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        AnswerConfig(**changes)


@pytest.mark.parametrize(
    "changes", [{"k": 0}, {"max_tokens": 0}, {"temperatures": ()}, {"temperatures": (-1.0,)}, {"num_prompts": 0}]
)
def test_validation_cannot_be_asked_for_out_of_range(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        ValidateConfig(**changes)


def test_the_journal_keeps_every_record(tmp_path: Path) -> None:
    with Journal(tmp_path / "m.jsonl", show=None) as journal:
        journal({"event": "a", "x": 1})
    with Journal(tmp_path / "m.jsonl", show=None) as journal:
        journal({"event": "b"})
    assert [json.loads(line)["event"] for line in (tmp_path / "m.jsonl").read_text().splitlines()] == ["a", "b"]


class ClosedTerminal(StringIO):
    def write(self, text: str) -> int:
        raise OSError(EIO, os.strerror(EIO))


def test_the_journal_goes_on_where_nobody_watches_any_more(tmp_path: Path) -> None:
    with Journal(tmp_path / "m.jsonl", show=ClosedTerminal()) as journal:
        for event in ("a", "b"):
            journal({"event": event})
    assert [json.loads(line)["event"] for line in (tmp_path / "m.jsonl").read_text().splitlines()] == ["a", "b"]
