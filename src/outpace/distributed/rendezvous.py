"""How ranks find each other: a store on a free port of the loopback for processes that we start, torchrun's otherwise.

NCCL joins GPUs, gloo CPUs.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from outpace.distributed import nccl
from outpace.distributed.group import Group
from outpace.distributed.launcher import launched
from outpace.errors import ConfigError, EngineError

LOOPBACK = "127.0.0.1"
TIMEOUT = timedelta(minutes=10)
"""Of one collective, and for all ranks to come. A rank that dies ends the group sooner, by its connections; idle ranks
are in no collective."""


def open_store(size: int) -> TCPStore:
    """A store for ranks of this machine; its port is one that was free."""
    return TCPStore(LOOPBACK, 0, size, is_master=True, timeout=TIMEOUT, wait_for_workers=False)


def reach_store(port: int) -> TCPStore:
    """The store that another process of this machine opened."""
    return TCPStore(LOOPBACK, port, is_master=False, timeout=TIMEOUT, wait_for_workers=False)


def torchrun_store() -> Store:
    """The store of the ranks that torchrun started, on whatever machines."""
    store: Store = next(iter(rendezvous("env://", timeout=TIMEOUT)))[0]
    return store


def device_of(device: torch.device, local_rank: int, num_local: int) -> torch.device:
    """The rank's own device: GPUs are taken in their order.

    Raises:
        ConfigError: there are fewer GPUs than ranks on this machine, or one was named for all.
    """
    if device.type == "cpu":
        return device
    if device.index:
        raise ConfigError(
            f"device is {device}, one GPU for {num_local} ranks: give cuda, and choose GPUs with CUDA_VISIBLE_DEVICES"
        )
    if (count := torch.cuda.device_count()) < num_local:
        raise ConfigError(
            f"tensor_parallel needs {num_local} GPUs on this machine, which shows {count} to torch; lower it"
        )
    return torch.device("cuda", local_rank)


def join(store: Store, rank: int, size: int, device: torch.device) -> Group:
    """This rank's end of the group, once all are there.

    Raises:
        EngineError: this process is in a group already.
    """
    if dist.is_initialized():
        raise EngineError("this process is in a tensor-parallel group already: close that LLM before making another")
    options: dict[str, Any] = {"backend": "gloo"}
    if device.type == "cuda":
        torch.cuda.set_device(device)
        options = {"backend": "nccl", "device_id": device}
    elif launched() is None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback_interface())
    dist.distributed_c10d._world.group_count = 0  # it counts tries that failed too, and ranks meet under that number
    dist.init_process_group(store=store, rank=rank, world_size=size, timeout=TIMEOUT, **options)
    if device.type == "cuda":
        nccl.started()
    return Group(rank, size, dist.group.WORLD)


def leave() -> None:
    """Ends this process's part in the group, if it has one, from whatever thread; what waits in a collective fails.

    NCCL's communicators are aborted: to destroy one in order, it waits for every graph that has captured it to be gone.
    """
    if not dist.is_initialized():
        return
    if dist.get_backend() == "nccl":
        dist.distributed_c10d._abort_process_group()
    else:
        dist.destroy_process_group()


def abort() -> None:
    """Sets free what waits on a GPU for a rank that is gone; gloo sees by itself that a connection broke."""
    if dist.is_initialized() and dist.get_backend() == "nccl":
        dist.distributed_c10d._abort_process_group()


def _loopback_interface() -> str:
    return "lo0" if sys.platform == "darwin" else "lo"
