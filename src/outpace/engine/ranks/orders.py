"""What the first rank tells the others, and what they answer. Ranks do the same work in the same order."""

from __future__ import annotations

import msgspec

from outpace.config import ResolvedConfig, Sums, Weights
from outpace.engine.frames import Shape
from outpace.engine.prefill_frames import PrefillShape
from outpace.types import CatchUpPlan, CyclePlan, Plan, PrefillPlan


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Load(_Message, frozen=True, kw_only=True):
    """The first order: which rank this is, where the others meet, and what to load, as `LLM` resolved it."""

    rank: int
    size: int
    port: int | None
    """Of the store on this machine; None where torchrun's ranks have one."""
    num_threads: int | None
    """For a CPU's arithmetic; None leaves it."""
    model: str
    drafter: str | None
    dtype: str
    device: str
    aux_boundaries: tuple[int, ...] | None
    weights: Weights
    sums: Sums


class Allocate(_Message, frozen=True, kw_only=True):
    """Settings in which nothing is left open: allocate pages and the device state."""

    config: ResolvedConfig


class Cycle(_Message, frozen=True, kw_only=True):
    """Run this plan."""

    plan: CyclePlan
    masked: bool
    """The first rank broadcasts masks in the middle of it."""


class Prefill(_Message, frozen=True, kw_only=True):
    """Run this plan."""

    plan: PrefillPlan
    masked: bool
    """As a cycle's."""


class CatchUp(_Message, frozen=True, kw_only=True):
    """Run this plan."""

    plan: CatchUpPlan


class GoOn(_Message, frozen=True, kw_only=True):
    """All ranks `Raised` alike: what comes next is an order as any other."""


class Provide(_Message, frozen=True, kw_only=True):
    """`Runner.make_extras`, to be answered with `Provided`."""


class Withdraw(_Message, frozen=True, kw_only=True):
    """`Runner.withdraw`: some rank could not provide."""


class Occupy(_Message, frozen=True, kw_only=True):
    """`Runner.occupy`."""

    num_rows: int
    columns: int


class PutBack(_Message, frozen=True, kw_only=True):
    """`Runner.put_back`."""

    num_rows: int
    context: int


class Vacate(_Message, frozen=True, kw_only=True):
    """`Runner.vacate`."""

    num_rows: int


class Compile(_Message, frozen=True, kw_only=True):
    """`compile_common`: by itself, without a word to other ranks."""


class Capture(_Message, frozen=True, kw_only=True):
    """`Runner.capture`, of a cycle."""

    shape: Shape


class CapturePrefill(_Message, frozen=True, kw_only=True):
    """`Runner.capture`, of a prefill."""

    shape: PrefillShape


class TimePhases(_Message, frozen=True, kw_only=True):
    """The beginning or the end of `Runner.with_phases`."""

    on: bool


class End(_Message, frozen=True, kw_only=True):
    """The last order: what was to be done is done. A connection that ends without it was cut off."""


class Here(_Message, frozen=True, kw_only=True):
    """A rank's process has started. The first message, so that other versions' still are understood."""

    versions: str = "another version"


class Beat(_Message, frozen=True, kw_only=True):
    """The rank's process lives, and what it is doing."""

    host: str = ""
    pid: int = 0
    device: str = ""
    """Once it knows."""
    doing: str = ""
    seconds: float = 0.0
    """For which it has been doing so."""
    still: float = 0.0
    """Seconds in which it did not get on with it."""
    num_tensors: int = 0
    """Loaded."""
    num_forwards: int = 0
    begun: int = 0
    ended: int = 0
    """Collectives, as far as the host goes."""


class Opened(_Message, frozen=True, kw_only=True):
    """The rank's device is there, and the rank comes to join the others."""


class Loaded(_Message, frozen=True, kw_only=True):
    """The rank's share of the weights is in place."""

    device: str
    free_bytes: int
    checkpoints: tuple[str, ...]
    """What it read, by `likeness.digests`."""
    nccl: dict[str, str]
    """Settings as the rank's process sees them."""


class Allocated(_Message, frozen=True, kw_only=True):
    """Pages and state are there."""


class Provided(_Message, frozen=True, kw_only=True):
    """Whether the rank had the memory."""

    done: bool


class Checked(_Message, frozen=True, kw_only=True):
    """Checksum of the tokens that the rank's first so many forwards chose."""

    num_forwards: int
    checksum: int


class Raised(_Message, frozen=True, kw_only=True):
    """A forward raised in this rank, which waits for `GoOn`."""

    num_forwards: int
    """Begun in this rank, this one included."""
    num_collectives: int
    """Begun in this rank."""
    message: str


class Failed(_Message, frozen=True, kw_only=True):
    """The rank raised, and ends."""

    message: str


ForTiming = Occupy | PutBack | Vacate | TimePhases
AtStart = Load | Allocate | Compile | Capture | CapturePrefill
Order = AtStart | Cycle | Prefill | CatchUp | GoOn | Provide | Withdraw | ForTiming | End
Answer = Here | Beat | Opened | Loaded | Allocated | Provided | Checked | Raised | Failed


def order_of(plan: Plan, *, masked: bool) -> Order:
    """The order to run a plan, under masks or not."""
    match plan:
        case CyclePlan():
            return Cycle(plan=plan, masked=masked)
        case PrefillPlan():
            return Prefill(plan=plan, masked=masked)
        case CatchUpPlan():
            return CatchUp(plan=plan)


def capture_of(shape: Shape | PrefillShape) -> Capture | CapturePrefill:
    """The order to make the graph of a shape."""
    return Capture(shape=shape) if isinstance(shape, Shape) else CapturePrefill(shape=shape)
