"""A mixture's forward as a GPU runs it, against the layer's own loop; without a GPU Triton's interpreter runs it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.gpu.test_attention import DEVICE, DTYPES
from outpace.kernels.packed import PackedWeight
from outpace.kernels.reuse import Reuse
from outpace.models import mixture
from outpace.models.arch import MixtureConfig
from outpace.models.mixture import Mixture
from outpace.models.packed import Format, Packing

pytest.importorskip("triton", reason="the kernels need Triton")
HALF = DTYPES[1]
CONFIG: dict[str, Any] = {"num_experts": 8, "num_chosen": 3, "intermediate_size": 24, "normalizes": True}
KIMI: dict[str, Any] = {"scoring": "sigmoid", "corrects": True, "scale": 2.5, "shared_size": 24}
READS = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "equal", "item")
"""What operations are called that wait for the device."""


class NoReads(TorchDispatchMode):
    """Operations whose result the host has to know are errors, as they are while a graph is captured."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert not any(read in name for read in READS), name
        if name in ("index", "index_put_"):
            indices = [i for i in args[1] if i is not None]
            assert all(i.dtype is not torch.bool for i in indices), "as many as there are true ones"
        return func(*args, **kwargs or {})


def made(form: Format | None = None, hidden: int = 64, **fields: Any) -> Mixture:
    kept = None if form is None else Packing(frozenset({0}), form)
    config = MixtureConfig(layers=(True,), **CONFIG | fields)
    layer = Mixture(hidden, config, packing=kept, dtype=HALF, device=DEVICE)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, 0.0, 0.15)
    if layer.correction_E is not None:
        layer.correction_E.uniform_(-0.2, 0.2)
    if layer.packed is not None:
        randomise(layer.packed.gate_up)
        randomise(layer.packed.down)
    return layer.requires_grad_(False)


def randomise(weight: PackedWeight) -> None:
    weight.words.random_(-(2**31), 2**31 - 1)
    if weight.bits == 8:
        weight.words.bitwise_and_(-0x40404041)  # no NaN
        weight.scales.fill_(0.1)
    else:
        pair = int(torch.tensor(0.03, dtype=HALF).view(torch.int16))
        weight.scales.fill_(pair << 16 | pair)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take part wherever the layer lies."""
    monkeypatch.setattr(mixture, "fuses", lambda x: True)


def by_loop(layer: Mixture, x_BSH: Tensor) -> Tensor:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mixture, "fuses", lambda x: False)
        return layer(x_BSH)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("form", "fields"),
    [
        (None, {}),
        (None, KIMI),
        (None, KIMI | {"num_groups": 4, "num_chosen_groups": 2}),
        (None, {"num_experts": 9, "num_groups": 3, "num_chosen_groups": 2}),
        ("int4", KIMI),
        ("fp8", {"shared_size": 24}),
    ],
)
def test_many_tokens_are_the_layer(form: Format | None, fields: dict[str, Any]) -> None:
    """The groups of the fourth case are such as no kernel knows: PyTorch routes, and the host reads nothing either."""
    layer, x = made(form, **fields), torch.randn(5, 14, 64, device=DEVICE).to(HALF)
    assert (layer.why_not_routed is None) == (fields.get("num_groups") != 3)
    expected = by_loop(layer, x)
    chosen = layer.chosen_TC
    with torch.inference_mode():
        found = layer(x)
    logits_TE = layer._logits(x.flatten(0, 1))  # in 16 bits some are equal, and of those anyone may come first
    assert torch.equal(logits_TE.gather(1, layer.chosen_TC.long()), logits_TE.gather(1, chosen))
    assert all(len(set(row)) == len(row) for row in layer.chosen_TC.tolist())
    assert found.shape == x.shape and found.dtype == HALF
    assert (found.double() - expected).norm() / expected.double().norm() < 1e-2


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("num_tokens", [3, 70])
def test_float32_goes_by_tiles_too(num_tokens: int) -> None:
    layer = made(**KIMI).float()
    x = torch.randn(1, num_tokens, 64, device=DEVICE)
    expected = by_loop(layer, x)
    with torch.inference_mode():
        found = layer(x)
    assert found.shape == x.shape, "no summands"
    assert torch.allclose(found, expected, atol=1e-5)


def test_reused_experts_are_the_layers() -> None:
    """Of more tokens than one look takes; in float32, where no two experts are as good."""
    layer = made(num_experts=120, intermediate_size=8, routes_in_float32=True)
    x, reuse = torch.randn(72, 64, device=DEVICE).to(HALF), Reuse(2, 3)
    with torch.inference_mode():
        expected, scores = layer.choose(x, reuse)
        found = layer.route(x, reuse)
        assert torch.equal(found[0].long(), expected)
        assert torch.allclose(found[1], scores, atol=1e-6)
        assert not torch.equal(layer.choose(x)[0], expected), "and would be others without"


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("num_reused", [0, 1])
@pytest.mark.parametrize("fields", [KIMI, {"num_experts": 9, "num_groups": 3, "num_chosen_groups": 2}])
def test_the_host_reads_nothing(fields: dict[str, Any], num_reused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a forward of many tokens may be captured. Kernels are left out: the interpreter reads as it likes."""
    from outpace.kernels.gpu import routing, tiled_mixture

    layer, x = made(**fields), torch.randn(35, 2, 64, device=DEVICE).to(HALF)
    zeros = torch.zeros(70, 3, dtype=torch.int32, device=DEVICE)
    monkeypatch.setattr(tiled_mixture, "mixture_tiled", lambda x_TH, *args, **kwargs: torch.zeros_like(x_TH))
    monkeypatch.setattr(routing, "choose", lambda *args, **kwargs: (zeros, zeros.float()))
    with torch.inference_mode():
        with NoReads():
            assert layer(x, num_reused).shape == x.shape
        with NoReads(), pytest.raises(AssertionError, match="unique"):
            by_loop(layer, x)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [70, 600])
@pytest.mark.parametrize("form", [None, "int4", "fp8"])
def test_a_graph_routes_anew(form: Format | None, num_tokens: int) -> None:
    """Captured for some tokens, replayed for others, and with the bits of a forward outside."""
    layer = made(form, **KIMI)
    x, others = torch.randn(2, 1, num_tokens, 64, device=DEVICE).to(HALF)
    with torch.inference_mode():
        layer(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer(x)
        for given in (x.clone(), others):
            x.copy_(given)
            graph.replay()
            assert torch.equal(found, layer(given))
            graph.replay()
            assert torch.equal(found, layer(given))


@pytest.mark.gpu
@pytest.mark.parametrize("fields", [KIMI, {"shared_size": 0}, KIMI | {"hidden": 4096}])
@pytest.mark.parametrize("form", [None, "int4", "fp8"])
def test_nothing_is_read_before_it_is_there(form: Format | None, fields: dict[str, Any]) -> None:
    """Forwards of few tokens in a row, kernels over one another, have the bits of steps that wait for each other. The
    widest has SiLU by itself, behind which groups are read ahead. Only a graph's first replay could read too early:
    later ones would find what it left."""
    layer = made(form, **fields)
    xs = torch.randn(40, 5, layer.router.in_features, device=DEVICE).to(HALF)

    def step_by_step(x: Tensor) -> Tensor:
        logits = layer.router_logits(x)
        torch.cuda.synchronize()
        experts, scores = layer.choose_by(logits)
        torch.cuda.synchronize()
        groups = layer.grouped(experts)
        torch.cuda.synchronize()
        out = torch.empty(3 + bool(layer.shared), *x.shape, device=DEVICE)
        layer.routed_into(out, x, groups, scores)
        torch.cuda.synchronize()
        if layer.shared is not None:
            product = layer.shared.product(x)
            torch.cuda.synchronize()
            activated = layer.shared.activated(product, x)
            torch.cuda.synchronize()
            layer.shared.into(out[-1], activated)
        return out

    with torch.inference_mode():
        if layer.shared is not None:
            assert layer.shared.activates_apart(layer.shared.product(xs[0])) == ("hidden" in fields)
        expected = [step_by_step(x) for x in xs]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = [layer(x[None]) for x in xs]
        found = [layer(x[None]) for x in xs]
        graph.replay()
        for mine, replayed, theirs in zip(found, captured, expected, strict=True):
            assert torch.equal(mine[:, 0], theirs)
            assert torch.equal(replayed[:, 0], theirs)
