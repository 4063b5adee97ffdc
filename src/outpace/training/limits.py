"""Ranges of the settings of training: checked where they are made, so that no run fails, or idles, on one later."""

from __future__ import annotations

from typing import Any

from outpace.errors import ConfigError

MAX_RUN_SEED = (1 << 62) - 1
"""A run's seed; those of its requests are counted on from it."""


def check_limits(settings: Any, **limits: tuple[float, float]) -> None:
    """Checks fields of a settings dataclass; None passes, and means what the field says it means.

    Args:
        settings: holds the fields.
        limits: field → (lowest, highest). Whole numbers ask for whole numbers.

    Raises:
        ConfigError: a value is of another kind or out of its range.
    """
    for name, (low, high) in limits.items():
        value = getattr(settings, name)
        if value is None:
            continue
        kinds = int if isinstance(low, int) else int | float
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ConfigError(f"{name} is {value!r}; it must be a {'whole ' * (kinds is int)}number in {low} … {high}")
        if not low <= value <= high:
            raise ConfigError(f"{name} is {value}; it must lie in {low} … {high}")
