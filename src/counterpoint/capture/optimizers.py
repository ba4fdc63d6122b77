"""One step of an optimizer on other tensors than its own: a copy that shares the settings and nothing else."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from counterpoint import _torch
from counterpoint.errors import CaptureError

State = dict[str, Any]

_ZERO_START = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
)
"""Optimizers whose first step does what any other step does to a state of zeros (SGD only without dampening)."""


_ELEMENTWISE = (
    *_ZERO_START,
    torch.optim.Adagrad,
    torch.optim.ASGD,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Rprop,
)
"""Optimizers that treat each element alone, so that the part of a DTensor on one rank is updated as if it were all."""


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether the optimizer may be run on the parts of DTensors that one rank holds."""
    return type(optimizer) in _ELEMENTWISE


def starts_from_zeros(optimizer: Optimizer) -> bool:
    """Whether a fresh optimizer of this kind may be run from a state of zeros."""
    dampened = any(group.get("dampening", 0) for group in optimizer.param_groups)
    return type(optimizer) in _ZERO_START and not dampened


def check_optimizer(optimizer: Optimizer, names: Mapping[int, str]) -> None:
    """Refuse optimizers that a graph cannot hold, and those of another model; `names` are the model's, by id."""
    kind = type(optimizer).__name__
    if isinstance(optimizer, (torch.optim.LBFGS, torch.optim.SparseAdam)):
        reason = "calls the model itself" if isinstance(optimizer, torch.optim.LBFGS) else "takes sparse gradients"
        raise CaptureError(
            f"{kind} cannot be part of a step graph: it {reason}",
            where="capture_step: optimizer",
            next_step="capture without optimizer= and run it on the gradients that the graph returns",
        )
    foreign = sum(1 for group in optimizer.param_groups for p in group["params"] if id(p) not in names)
    if foreign:
        raise CaptureError(
            f"{foreign} parameters of the {kind} do not belong to the captured model",
            where="capture_step: optimizer",
            next_step="make the optimizer after sharding or wrapping the model, from model.parameters()",
        )


def step_on(
    optimizer: Optimizer, stand_in: Callable[[Tensor], Tensor], state: Mapping[Tensor, State]
) -> dict[Tensor, State]:
    """Let a copy of the optimizer take one step on stand-ins that have their gradients; returns the copy's state.

    The step count stays a tensor, as with `capturable=True`: a number would be the same in every step of the graph.
    """
    double = copy.copy(optimizer)
    # A scheduler replaces `step` on the instance, bound to the original.
    double.__dict__.pop("step", None)
    double.state = defaultdict(dict, state)
    double.param_groups = [_group_on(group, stand_in) for group in optimizer.param_groups]
    kind = type(optimizer).__name__
    try:
        with _torch.as_if_compiling():
            double.step()
    except Exception as error:
        raise CaptureError(
            f"the step of {kind} cannot be traced: {type(error).__name__}: {str(error).splitlines()[0]}",
            where="capture_step: optimizer",
            next_step="capture without optimizer= and run it on the gradients that the graph returns",
        ) from error
    return dict(double.state)


def _group_on(group: Mapping[str, Any], stand_in: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    changed = {**group, "params": [stand_in(parameter) for parameter in group["params"]]}
    if "capturable" in changed:
        changed["capturable"] = True
    return changed
