"""The drafter's weights while it learns: float32 masters, the optimizer's moments, a running mean, a working copy.

The working copy is the drafter itself in the compute dtype, so that training runs exactly the numbers that inference
will. Its gradients are added to the masters in float32; after each step the masters are copied back.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from outpace.errors import ConfigError
from outpace.models.drafter import Drafter
from outpace.training.recipe import TrainConfig

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Weights:
    """Owns the training of one drafter's parameters; whatever it shares with the target stays as it is.

    Args:
        drafter: the working copy; `requires_grad` says what is trained.
        config: the optimizer's settings.
        peak: highest learning rate.
    """

    def __init__(self, drafter: Drafter, config: TrainConfig, peak: float) -> None:
        self.drafter, self.config, self.peak = drafter, config, peak
        self.working = {name: p for name, p in drafter.named_parameters() if p.requires_grad}
        self.masters = {name: nn.Parameter(p.detach().float().clone()) for name, p in self.working.items()}
        self.means = {name: p.detach().clone() for name, p in self.masters.items()}
        self.optimizer = self._optimizer()
        self.num_steps = 0

    def _optimizer(self) -> torch.optim.AdamW:
        matrices = [p for p in self.masters.values() if p.ndim > 1]
        others = [p for p in self.masters.values() if p.ndim <= 1]
        return torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": self.config.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=self.peak,
            betas=(self.config.beta1, self.config.beta2),
            fused=next(iter(self.masters.values())).device.type == "cuda",
        )

    def collect(self) -> None:
        """Adds the working copy's gradients to the masters'."""
        for name, working in self.working.items():
            if working.grad is not None:
                grad = working.grad.float()
                master = self.masters[name]
                master.grad = grad if master.grad is None else master.grad + grad
                working.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> Tensor:
        """One optimizer step at `rate` times the peak; returns the gradient's norm before clipping, on the device."""
        norm = nn.utils.clip_grad_norm_(self.masters.values(), self.config.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.peak * rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.num_steps += 1
        self._average()
        self._publish()
        return norm

    def _average(self) -> None:
        """Early on the mean follows closely, since the first weights are not worth remembering."""
        keep = min(self.config.average, self.num_steps / (self.num_steps + 10.0))
        torch._foreach_lerp_(list(self.means.values()), list(self.masters.values()), 1.0 - keep)

    @torch.no_grad()
    def _publish(self) -> None:
        torch._foreach_copy_(list(self.working.values()), list(self.masters.values()))

    @torch.no_grad()
    def put_means(self) -> None:
        """Puts the running means into the working copy, to validate or export; `put_masters` goes back."""
        torch._foreach_copy_(list(self.working.values()), list(self.means.values()))

    def put_masters(self) -> None:
        """Puts the masters into the working copy."""
        self._publish()

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, by name; before the first step moments are 0, as the optimizer's own."""
        tensors = {f"master.{name}": p.detach() for name, p in self.masters.items()}
        tensors |= {f"mean.{name}": mean for name, mean in self.means.items()}
        for name, p in self.masters.items():
            moments = self.optimizer.state.get(p, {})
            for moment in _MOMENTS:
                tensors[f"{moment}.{name}"] = moments[moment] if moments else torch.zeros_like(p)
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], num_steps: int) -> None:
        """Takes up what `state` gave.

        Raises:
            ConfigError: a tensor is missing or of another shape: the checkpoint belongs to another drafter.
        """
        self.num_steps = num_steps
        for name, p in self.masters.items():
            p.copy_(_fetch(tensors, f"master.{name}", p))
            self.means[name].copy_(_fetch(tensors, f"mean.{name}", p))
            moments = {moment: _fetch(tensors, f"{moment}.{name}", p).clone() for moment in _MOMENTS}
            step = torch.tensor(float(num_steps), device=p.device if self.optimizer.defaults["fused"] else "cpu")
            self.optimizer.state[p] = {"step": step, **moments}
        self._publish()


def _fetch(tensors: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    if name not in tensors or tensors[name].shape != like.shape:
        found = list(tensors[name].shape) if name in tensors else "missing"
        raise ConfigError(
            f"checkpoint tensor {name} is {found}, this drafter needs {list(like.shape)}; "
            "resume with the settings of the first run, or train into an empty folder"
        )
    return tensors[name].to(like.device, torch.float32)
