"""The one error tree. A message says the value, the limit and the remedy.

    OutpaceError
    ├── ConfigError       a setting is wrong or two settings disagree        (also a ValueError)
    ├── CheckpointError   a target cannot be read: names the file, tensor or field
    │   └── DrafterError  a drafter is inconsistent with itself or with its target
    ├── RequestError      one request cannot be served; the others go on     (also a ValueError)
    └── EngineError       the engine itself cannot go on

Invariants of our own code are `assert`s, never these.
"""


class OutpaceError(Exception):
    """Root of everything this package raises on purpose."""


class ConfigError(OutpaceError, ValueError):
    """A setting that a user gave is out of range, unknown, or contradicts another."""


class CheckpointError(OutpaceError):
    """A checkpoint is missing, unreadable, incomplete or of an unsupported kind."""


class DrafterError(CheckpointError):
    """A drafter checkpoint contradicts itself or does not fit its target."""


class RequestError(OutpaceError, ValueError):
    """One request is refused; it names the field, its value and the limit."""


class EngineError(OutpaceError):
    """The engine cannot go on (out of memory at start, a device fault)."""
