"""Where a model runs: the named GPU, and everything on it."""

from __future__ import annotations

import pytest
import torch

from engine.tiny import engine, tiny_target
from outpace import LLM, ConfigError
from outpace.engine import devices, llm, resolve
from outpace.engine.devices import enter, resolve_device


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """On a machine that shows two GPUs: which were made the current one."""
    made: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    return made


@pytest.mark.parametrize(
    ("name", "found"), [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")]
)
def test_a_name_is_one_gpu(current: list[torch.device], name: str, found: str) -> None:
    assert enter(resolve_device(name)) == torch.device(found)
    assert current == [torch.device(found)]


def test_a_cpu_is_no_current_device(current: list[torch.device]) -> None:
    assert enter(resolve_device("cpu")) == torch.device("cpu")
    engine(tiny_target())
    assert current == []


@pytest.mark.parametrize(
    ("name", "message"), [("cuda:2", "shows 2 GPUs"), ("tpu", "auto, cpu, cuda"), ("meta", "only cpu and cuda")]
)
def test_what_is_not_there_is_refused(current: list[torch.device], name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_device(name)


def test_a_model_is_loaded_onto_the_gpu_that_was_named_and_that_one_is_current(
    current: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[torch.device] = []

    def load(*args: object, device: torch.device, **others: object) -> None:
        assert current == [device], "kernels run on the current device while weights are packed"
        loaded.append(device)
        raise ConfigError("that is enough")

    monkeypatch.setattr(llm, "load_parts", load)
    monkeypatch.setattr(resolve, "locate", lambda name: type("Source", (), {"name": name}))
    with pytest.raises(ConfigError, match="enough"):
        LLM("model", drafter=None, device="cuda:1")
    assert loaded == [torch.device("cuda:1")]


def test_an_engine_over_loaded_models_enters_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[torch.device] = []
    monkeypatch.setattr(llm, "enter", lambda device: entered.append(device) or device)
    engine(tiny_target())
    assert entered == [torch.device("cpu")] and devices.enter is enter
