from __future__ import annotations

import subprocess
import sys

import pytest

from outpace.errors import ConfigError
from outpace.lab.breakeven import Balance, break_even_accept_length


def balance(**changes: float) -> Balance:
    values = {"accept_length": 2.0, "cycle_s": 0.0333, "step_s": 0.0121, "draft_s": 0.002, "verify_s": 0.0293}
    return Balance(**{**values, **changes}, k=2)  # type: ignore[arg-type]


def test_the_case_that_outpace_starts_from() -> None:
    """Accept length 2.0 at 60 tok/s against 12.1 ms a plain step: 2.75 tokens would have been needed."""
    case = balance()
    assert case.break_even == pytest.approx(2.752, abs=1e-3)
    assert case.speedup == pytest.approx(0.727, abs=1e-3)
    assert case.verify_steps + case.draft_steps + case.rest_steps == pytest.approx(case.break_even)
    assert case.why().startswith("Speculation does not pay because accept length 2.00 is not above break-even 2.75")


def test_it_pays_above_break_even_and_not_at_it() -> None:
    assert "Speculation pays" in balance(cycle_s=0.02).why()
    assert "does not pay" in balance(accept_length=2.0, cycle_s=2.0, step_s=1.0).why()


@pytest.mark.parametrize(("cycle", "step"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_times_must_be_positive(cycle: float, step: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        break_even_accept_length(cycle, step)


def test_it_needs_no_torch() -> None:
    code = "import sys, outpace.lab.breakeven; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
