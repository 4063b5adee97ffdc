"""A profile as it could come from a GPU. Its figures are made up for tests; no machine measured them."""

from __future__ import annotations

from outpace.lab.profile.record import SCHEMA, Paired, Part, ProfileRecord, Speed, launch_ms, way_of

SERVED = {
    ("draft", "attention"): (0.03, 5),
    ("draft", "linear layers"): (0.42, 12),
    ("draft", "head"): (0.19, 3),
    ("draft", "launch gaps"): (0.02, 0),
    ("verify", "attention"): (0.31, 33),
    ("verify", "linear layers"): (3.51, 128),
    ("verify", "norms"): (0.12, 65),
    ("verify", "head"): (0.25, 1),
    ("verify", "fusion"): (0.03, 1),
    ("verify", "other"): (0.01, 1),
    ("verify", "launch gaps"): (0.06, 0),
    ("accept", "sampling"): (0.02, 2),
    ("accept", "bookkeeping"): (0.01, 1),
    ("gaps", "copies"): (0.005, 2),
    ("gaps", "launch gaps"): (0.02, 0),
}


def gpu_profile() -> ProfileRecord:
    """Graphs and eager cycles of 3 drafts, reconciled within 1%."""
    graph = way_of(
        "graph",
        Speed(tok_s=2.6 / 5.05e-3, low=510.0, high=518.0, tokens=2600, cycles=1000, seconds=5.05),
        {"draft": 0.67, "verify": 4.30, "accept": 0.03},
        0.025,
        _parts(1.0),
        Paired(median=0.31, low=None, high=None),
        Paired(median=0.004, low=-0.001, high=0.008),
    )
    eager = way_of(
        "eager",
        Speed(tok_s=2.6 / 21e-3, low=118.0, high=129.0, tokens=2600, cycles=1000, seconds=21.0),
        {"draft": 3.1, "verify": 16.9, "accept": 0.5},
        0.4,
        _parts(4.0),
        Paired(median=0.62, low=None, high=None),
    )
    plain = Speed(tok_s=232.5, low=231.0, high=233.0, tokens=1000, cycles=1000, seconds=4.301)
    return ProfileRecord(
        kind="profile",
        schema=SCHEMA,
        started_at="then",
        model="made up (random weights)",
        device="cuda",
        dtype="bfloat16",
        k=3,
        context=1072.0,
        num_rounds=6,
        prompts=2,
        simulated=True,
        ways=(graph, eager),
        why_one_way=None,
        launch_ms=launch_ms((graph, eager)),
        plain=plain,
        speedup=Paired(median=2.21, low=2.19, high=2.24),
        break_even=graph.cycle_ms / plain.cycle_ms,
        acceptance_at=(0.8, 0.7, 0.6),
        judged_at=(1000, 800, 560),
        limits_ms={
            "draft": {"attention": 0.003, "linear layers": 0.3, "head": 0.18, "sampling": 0.0001},
            "verify": {"attention": 0.03, "linear layers": 3.24, "norms": 0.0001, "head": 0.24, "fusion": 0.023},
            "accept": {"sampling": 0.0002},
        },
        why_no_limits=None,
        rates={"copy_gb_s": 4300.0, "matrix_tflops": 700.0},
        seen_by="a trace of the device; an instant is that kernel's which has been running longest",
        unknown={"a_kernel_of_tomorrow": 0.01},
        notes=("the weights are random: acceptance is simulated, and only times mean anything",),
        settings={"model": "made up", "engine": {"k": 3}},
        machine={"cpu": "a processor", "cores": 8, "gpus": [{"name": "a GPU"}], "torch": "2.13.0", "threads": 1},
    )


def _parts(slower: float) -> tuple[Part, ...]:
    return tuple(
        Part(phase=phase, name=name, ms=ms * (slower if name == "launch gaps" else 1.0), count=count)
        for (phase, name), (ms, count) in SERVED.items()
    )
