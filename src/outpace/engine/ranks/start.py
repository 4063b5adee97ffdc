"""Tensor parallel from `LLM`'s side: the other ranks brought up beside this one, and what there is to say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.distributed_c10d import Store

from outpace.config import EngineConfig, ResolvedConfig
from outpace.distributed import nccl
from outpace.distributed.group import Group
from outpace.distributed.handshake import ranks_key
from outpace.distributed.launcher import Launched, launched
from outpace.distributed.meeting import meet_first, meet_others
from outpace.distributed.pipe import Pipe
from outpace.distributed.rendezvous import device_of, join, open_store, torchrun_store
from outpace.engine.memory import free_bytes
from outpace.engine.ranks import orders
from outpace.engine.ranks.crew import Crew
from outpace.engine.ranks.follower import follow
from outpace.engine.ranks.leader import Leader
from outpace.engine.ranks.likeness import digests, unlike_files
from outpace.engine.ranks.orders import Order
from outpace.engine.ranks.whereabouts import JOINING
from outpace.engine.resolve import Wanted
from outpace.errors import ConfigError
from outpace.models.parallel import MAX_GATHERED
from outpace.models.registry import describe_target
from outpace.models.shares import check_target
from outpace.models.sums import with_sums
from outpace.speculation.pair import Pair
from outpace.wording import count_of


def check_ranks(config: EngineConfig) -> None:
    """Refuses settings of NCCL that are none, or that nothing would read, and to be one of several ranks alone.

    Raises:
        ConfigError: names the setting.
    """
    nccl.parse(config.nccl)
    here = launched() if config.tensor_parallel == 1 else None
    if here is not None and here.size > 1:
        raise ConfigError(
            f"tensor_parallel is 1, but torchrun started {here.size} ranks: make them equal, or unset RANK and "
            "WORLD_SIZE in processes that share nothing"
        )
    if config.nccl and config.tensor_parallel == 1:
        raise ConfigError(f"nccl is {list(config.nccl)}, but one rank alone has no use for it: set tensor_parallel")
    if config.sums != "auto" and config.tensor_parallel == 1:
        raise ConfigError(f"sums is {config.sums!r}, but one rank alone has nothing to add up: set tensor_parallel")


def _torchrun(here: Launched, size: int) -> tuple[Store, Crew]:
    """The store of torchrun's ranks, and the others. Returns in the first of them; another follows until that ends.

    Raises:
        ConfigError: torchrun started another number of ranks, or gave them no key.
        EngineError: the first rank cannot be reached.
    """
    if here.size != size:
        raise ConfigError(
            f"tensor_parallel is {size}, but torchrun started {count_of(here.size, 'rank')} (WORLD_SIZE): make them "
            "equal"
        )
    key, store = ranks_key(), torchrun_store()
    if here.rank:
        follow(Pipe(meet_first(store, here, key), Order), here, store)
    return store, Crew(meet_others(store, here, key), []).complete()


def _loads(asked: Wanted, port: int | None, num_threads: int | None) -> list[orders.Load]:
    """For each of the other ranks, what it loads."""
    return [
        orders.Load(
            rank=rank,
            size=asked.config.tensor_parallel,
            port=port,
            num_threads=num_threads,
            model=str(asked.source.path),
            drafter=asked.drafter,
            dtype=str(asked.dtype).removeprefix("torch."),
            device=asked.device.type,
            aux_boundaries=asked.aux_boundaries,
            weights=asked.config.weights,
            sums=asked.config.sums,
        )
        for rank in range(1, asked.config.tensor_parallel)
    ]


class Ranks:
    """All ranks of one LLM, this process's being the first. `start` makes them."""

    def __init__(self, group: Group, device: torch.device, crew: Crew, asked: Wanted) -> None:
        self.group, self.device = group, device
        self._crew, self._asked = crew, asked
        self._others: list[orders.Loaded] = []

    def close(self) -> None:
        """Ends the other ranks."""
        self._crew.close()

    def check(self) -> None:
        """Raises EngineError if a rank has died."""
        self._crew.check()

    def when_they_end(self, call: Callable[[], None]) -> None:
        """Calls this, from another thread, once a rank has died."""
        self._crew.release.add(call)

    @classmethod
    def start(cls, asked: Wanted) -> Ranks:
        """Starts the other ranks, which begin to load, and joins them.

        Raises:
            ConfigError: the model cannot be shared by so many ranks, or there are not enough GPUs.
            EngineError: a rank did not come up.
        """
        size, here, device = asked.config.tensor_parallel, launched(), asked.device
        check_target(describe_target(asked.source).config, size)
        settings = nccl.parse(asked.config.nccl)
        nccl.apply(settings)
        own = device_of(device, 0 if here is None else here.local_rank, size if here is None else here.local_rank + 1)
        num_threads = max(1, torch.get_num_threads() // size) if device.type == "cpu" and here is None else None
        store: Store
        port: int | None = None
        if here is None:
            crew = Crew.start(size - 1, {} if num_threads is None else {"OMP_NUM_THREADS": str(num_threads)})
            store = own_store = open_store(size)
            port = own_store.port
        else:
            store, crew = _torchrun(here, size)
        try:
            crew.tell(_loads(asked, port, num_threads))
            crew.hear(orders.Opened)  # whoever joins waits for the others in a call that nobody can end
            crew.progress.begin(JOINING)
            group = crew.watched(lambda: with_sums(join(store, 0, size, own), own, asked.config.sums))
        except BaseException:
            crew.close()
            raise
        crew.progress.device, crew.progress.calls = str(own), group.calls
        crew.progress.begin("loading")
        if group.exchange is not None:
            crew.release.add(group.exchange.stop)
        if own.type == "cuda":
            torch.cuda.set_device(own)  # of this thread; the other one was for waiting
        return cls(group, own, crew, asked)

    def whereabouts(self) -> str:
        """What each rank is doing, those behind first; for who finds that they hang."""
        return self._crew.whereabouts.of_all()

    def took_a_tensor(self) -> None:
        """The first rank has loaded one more."""
        self._crew.progress.took_a_tensor()

    def wait_loaded(self) -> None:
        """Until every rank has loaded its share, from the same files.

        Raises:
            EngineError: one could not, or read others.
        """
        self._crew.progress.begin("waiting for the others to load")
        own = digests(str(self._asked.source.path), self._asked.drafter)
        self._others = self._crew.hear(orders.Loaded)
        if unlike := unlike_files([own, *(other.checkpoints for other in self._others)]):
            self._crew.fail(*unlike)

    def free_bytes(self) -> int:
        """Memory that is free on every rank, after `wait_loaded`."""
        return min(free_bytes(self.device), *(other.free_bytes for other in self._others))

    def allocate(self, config: ResolvedConfig) -> None:
        """Tells the others the resolved settings, by which they allocate."""
        self._crew.tell(orders.Allocate(config=config))

    def runner(self, pair: Pair, config: ResolvedConfig) -> Leader:
        """The first rank's runner, once the others' are there."""
        self._crew.progress.begin("waiting for the others to allocate")
        leader = Leader(pair, config, self._crew)
        self._crew.hear(orders.Allocated)
        return leader

    def describe(self) -> dict[str, Any]:
        """As plain data for JSON: NCCL's settings as asked for, and as each rank's process sees them."""
        seen = [nccl.observed(), *(other.nccl for other in self._others)]
        devices = [str(self.device), *(other.device for other in self._others)]
        return {
            "size": self.group.size,
            "backend": "nccl" if self.device.type == "cuda" else "gloo",
            "sums": f"parts gathered and added in rank order up to {MAX_GATHERED} rows, all-reduce beyond",
            "gathering": dict(self.group.sums),
            "nccl_asked": nccl.parse(self._asked.config.nccl),
            "ranks": [
                {"device": device, "nccl_observed": observed} for device, observed in zip(devices, seen, strict=True)
            ],
        }
