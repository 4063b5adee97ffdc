from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from browser import browser, page  # noqa: F401  fixtures
from server.models import make_drafter, make_model
from server.running import Server, serving

ENGINE = ("--num-pages", "400", "--max-rows", "4", "--control", "fixed", "--k", "3", "--max-context", "160")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return make_model(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="session")
def drafter(model: Path) -> Path:
    torch.manual_seed(1)
    return make_drafter(model, model.parent / "drafter")


@pytest.fixture(scope="session")
def server(model: Path, drafter: Path) -> Iterator[Server]:
    """One for all tests that leave it as it is: four rows, three drafts in every cycle."""
    with serving(model, "--drafter", str(drafter), *ENGINE) as running:
        yield running
