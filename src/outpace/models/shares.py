"""What part of a layer a rank holds, as arithmetic: whole heads, MLP columns and vocabulary rows, evenly cut.

Queries are cut by heads and go with the KV heads that they share; where there are more ranks than KV heads, several
ranks hold the same one. MLPs and experts are cut along their intermediate size, so that all ranks take part whichever
experts are chosen. Whatever is not cut (embeddings, norms, routers, latents, the drafter's fusion) every rank holds
whole: reading it takes less than the collective that cutting it would add.
"""

from __future__ import annotations

from dataclasses import dataclass

from outpace.distributed.group import Group
from outpace.errors import ConfigError
from outpace.models.arch import TargetConfig
from outpace.models.wiring import LayerShape


@dataclass(frozen=True, slots=True)
class Share:
    """`size` of `whole` elements, from `start` on."""

    start: int
    size: int
    whole: int

    def times(self, factor: int) -> Share:
        """The same share of elements that come `factor` for one."""
        return Share(self.start * factor, self.size * factor, self.whole * factor)


def even_share(group: Group, whole: int) -> Share:
    """Of elements that the number of ranks divides."""
    size = whole // group.size
    assert size * group.size == whole, f"{whole} cannot be cut into {group.size}; the checks below come first"
    return Share(group.rank * size, size, whole)


def kv_share(group: Group, num_kv_heads: int) -> Share:
    """Of KV heads: a range of them, or one that other ranks hold too."""
    if num_kv_heads >= group.size:
        return even_share(group, num_kv_heads)
    return Share(group.rank * num_kv_heads // group.size, 1, num_kv_heads)


def padded_share(group: Group, whole: int) -> tuple[Share, int]:
    """Of elements that are filled up to a multiple of the ranks: the real ones, and how many with the filling."""
    size = -(-whole // group.size)
    start = min(group.rank * size, whole)
    return Share(start, min(size, whole - start), whole), size


def check_target(config: TargetConfig, num_ranks: int) -> None:
    """Refuses a number of ranks that the target cannot be cut into.

    Raises:
        ConfigError: names the size that does not divide.
    """
    mixture, latent = config.mixture, config.latent
    sizes = {"num_attention_heads": config.num_heads}
    if mixture is None or not all(mixture.layers):
        sizes["intermediate_size"] = config.intermediate_size
    if mixture is not None:
        sizes["moe_intermediate_size"] = mixture.intermediate_size
        sizes["the shared experts' intermediate size"] = mixture.shared_size
    kv_heads = config.num_kv_heads if latent is None else None
    if why := _why_not(sizes, kv_heads, num_ranks):
        raise ConfigError(f"tensor_parallel is {num_ranks}, but the target's {why}")


def why_whole(shape: LayerShape, num_ranks: int) -> str | None:
    """Why a drafter cannot be cut into so many ranks, so that each holds it whole; None if it can."""
    sizes = {"num_attention_heads": shape.num_heads, "intermediate_size": shape.intermediate_size}
    return _why_not(sizes, shape.num_kv_heads if shape.latent is None else None, num_ranks)


def _why_not(sizes: dict[str, int], num_kv_heads: int | None, num_ranks: int) -> str | None:
    """`num_kv_heads` is None where every rank holds what is cached."""
    why = _uneven(sizes, num_kv_heads, num_ranks)
    if why is None:
        return None
    fitting = [n for n in range(1, max(sizes.values()) + 1) if _uneven(sizes, num_kv_heads, n) is None]
    nearest = [max(n for n in fitting if n < num_ranks), *(n for n in fitting if n > num_ranks)]
    return f"{why}: try {' or '.join(map(str, nearest[:2]))}"


def _uneven(sizes: dict[str, int], num_kv_heads: int | None, num_ranks: int) -> str | None:
    for name, size in sizes.items():
        if size % num_ranks:
            return f"{name} is {size}, which {num_ranks} ranks cannot share evenly"
    if num_kv_heads is not None and max(num_kv_heads, num_ranks) % min(num_kv_heads, num_ranks):
        return f"num_key_value_heads is {num_kv_heads}, of which some of {num_ranks} ranks would hold more than others"
    return None
