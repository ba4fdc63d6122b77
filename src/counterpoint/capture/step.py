"""One whole train step as a single graph: forward, loss, backward, and the optimizer's update when there is one.

The graph is functional. Its inputs are the parameters, buffers, optimizer state and batch of one rank, its outputs the
loss, the gradients and whatever changed; every collective and every wait is a node of its own. DTensors are taken apart
into the tensors that they hold on this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.fx import GraphModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from counterpoint import _torch
from counterpoint.capture.collectives import Ranks, all_reduce, broadcast
from counterpoint.capture.inputs import (
    Held,
    StandIns,
    TensorRole,
    around,
    held_tensors,
    local_part,
    modules_of,
    swapped,
)
from counterpoint.capture.lines import user_line
from counterpoint.capture.module_paths import noting_modules
from counterpoint.capture.optimizers import check_optimizer, is_elementwise, step_on
from counterpoint.capture.run import CapturedStep
from counterpoint.capture.signature import Slot, StepSignature, write_signature
from counterpoint.capture.tidy import keep_outputs, tidy
from counterpoint.capture.world import current_world, groups_of
from counterpoint.errors import CaptureError

LossFn = Callable[[nn.Module, Any], Tensor]


class StepTrace:
    """One step, ready to be traced: what goes in, and the function that computes what comes out."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        batch: Any,
        optimizer: Optimizer | None,
        train: bool,
        dynamic: bool | None,
        device: str,
    ) -> None:
        self.model, self.loss_fn, self.optimizer, self.train = model, loss_fn, optimizer, train
        self.stand_ins = StandIns(device)
        self.held = held_tensors({"": model, **modules_of(loss_fn)})
        self.names = {id(h.tensor): h.name for h in self.held}
        self.reducers = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
        _check_model(model, self.held, self.reducers)
        self.leaves, self.structure = _torch.tree_flatten(batch)
        self.paths = _torch.tree_paths(batch)
        self.dynamic = dynamic
        # Elementwise updates need no DTensor around the parts, and list operators refuse a mix of the two.
        self.by_parts = optimizer is not None and is_elementwise(optimizer)
        self.state = self._state_of() if optimizer is not None else {}
        self.outputs: list[Slot] = []

    # -- inputs -----------------------------------------------------------------------------------------------------

    def _state_of(self) -> dict[str, dict[str, Any]]:
        """The optimizer's state by parameter: its own where it has one, else what a first step would leave."""
        optimizer = self.optimizer
        if optimizer is None:
            return {}
        check_optimizer(optimizer, self.names)
        fresh = self._first_step(optimizer)
        return {
            self.names[id(p)]: dict(optimizer.state[p]) if optimizer.state.get(p) else fresh.get(id(p), {})
            for group in optimizer.param_groups
            for p in group["params"]
            if p.requires_grad
        }

    def _first_step(self, optimizer: Optimizer) -> dict[int, dict[str, Any]]:
        stand_ins: dict[int, Tensor] = {}
        with self.stand_ins.mode:
            for held in self.held:
                stand_in = self._target(around(self.stand_ins.local(held.tensor), held.tensor))
                stand_in.requires_grad_(held.tensor.requires_grad)
                if stand_in.requires_grad:
                    stand_in.grad = torch.zeros_like(stand_in)
                stand_ins[id(held.tensor)] = stand_in
            state = step_on(optimizer, lambda p: stand_ins[id(p)], {})
        originals = {id(new): old for old, new in stand_ins.items()}
        return {originals[id(p)]: held for p, held in state.items()}

    def inputs(self) -> list[tuple[Slot, Tensor]]:
        """The slots and the stand-ins that are traced in their place."""
        local = self.stand_ins.local
        found = [(Slot(held.role, held.name), local(held.tensor)) for held in self.held]
        for name, state in self.state.items():
            found += [(Slot(TensorRole.STATE, f"{name}.{key}"), local(v)) for key, v in state.items() if _is_tensor(v)]
        for path, leaf in zip(self.paths, self.leaves, strict=True):
            if _is_tensor(leaf):
                found.append((Slot(TensorRole.BATCH, path), local(leaf, self._dynamic_dims(leaf))))
        return found

    def _dynamic_dims(self, leaf: Tensor) -> frozenset[int]:
        if self.dynamic is None:
            return _torch.dynamic_dims(leaf)
        return frozenset(range(leaf.ndim)) if self.dynamic else frozenset()

    # -- the step ---------------------------------------------------------------------------------------------------

    def run(self, *flat: Tensor) -> list[Tensor]:
        """The step as a function of plain tensors; called once, while tracing."""
        given = iter(flat)
        fresh = {id(held.tensor): self._leaf(held, next(given)) for held in self.held}
        state = {
            name: {key: self._like(next(given), v) if _is_tensor(v) else v for key, v in held.items()}
            for name, held in self.state.items()
        }
        leaves = [around(next(given), leaf) if _is_tensor(leaf) else leaf for leaf in self.leaves]
        batch = _torch.tree_unflatten(leaves, self.structure)
        by_name = {held.name: fresh[id(held.tensor)] for held in self.held}
        held = [(held, fresh[id(held.tensor)]) for held in self.held]
        # Around the backward too, which computes checkpointed parts again.
        with swapped(held), _torch.without_reducer(self.reducers), noting_modules(self.model):
            loss, gradients = self._loss_and_gradients(batch, by_name, fresh)
        if self.optimizer is not None:
            by_name |= self._update(self.optimizer, by_name, gradients, state)
        return self._results(loss, gradients, by_name, state)

    def _update(
        self,
        optimizer: Optimizer,
        by_name: dict[str, Tensor],
        gradients: dict[str, Tensor],
        state: dict[str, dict[str, Any]],
    ) -> dict[str, Tensor]:
        """The parameters after the optimizer's step; the state is changed in place."""
        targets = {name: self._target(by_name[name]) for name in by_name}
        for name, gradient in gradients.items():
            targets[name].grad = self._target(gradient)
        own = {targets[name]: held for name, held in state.items()}
        step_on(optimizer, lambda p: targets[self.names[id(p)]], own)
        return {held.name: targets[held.name] for held in self.held if held.role is TensorRole.PARAMETER}

    def _target(self, tensor: Tensor) -> Tensor:
        return local_part(tensor).detach().requires_grad_(tensor.requires_grad) if self.by_parts else tensor

    def _like(self, local: Tensor, original: Tensor) -> Tensor:
        return local if self.by_parts else around(local, original)

    def _leaf(self, held: Held, local: Tensor) -> Tensor:
        tensor = around(local, held.tensor)
        if held.role is not TensorRole.PARAMETER:
            return tensor
        leaf = tensor.detach().requires_grad_(held.tensor.requires_grad)
        if leaf.requires_grad:
            _torch.copy_tensor_hooks(held.tensor, leaf)
        return leaf

    def _loss_and_gradients(
        self, batch: Any, by_name: dict[str, Tensor], fresh: dict[int, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        for module in self.reducers:
            _stand_in_for_reducer(module, fresh)
        with torch.set_grad_enabled(self.train):
            loss = self.loss_fn(self.model, batch)
        _check_loss(loss)
        if not self.train:
            return loss, {}
        trained = {name: leaf for name, leaf in by_name.items() if leaf.requires_grad}
        if not loss.requires_grad:
            raise CaptureError(
                "the loss does not depend on any parameter that requires a gradient",
                where="capture_step",
                next_step="check requires_grad of the parameters, or pass train=False for a forward alone",
            )
        with _torch.remember_forward_lines(loss):
            found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        return loss.detach(), {
            name: _placed_like(gradient.detach(), trained[name])
            for name, gradient in zip(trained, found, strict=True)
            if gradient is not None
        }

    def _results(
        self, loss: Tensor, gradients: dict[str, Tensor], by_name: dict[str, Tensor], state: dict[str, dict[str, Any]]
    ) -> list[Tensor]:
        results = [(Slot(TensorRole.LOSS, ""), loss)]
        results += [(Slot(TensorRole.GRADIENT, name), gradient) for name, gradient in gradients.items()]
        results += [(Slot(held.role, held.name), by_name[held.name]) for held in self.held]
        for name, held in state.items():
            results += [(Slot(TensorRole.STATE, f"{name}.{key}"), v) for key, v in held.items() if _is_tensor(v)]
        self.outputs = [slot for slot, _ in results]
        with torch.no_grad():
            return [local_part(tensor).detach() for _, tensor in results]


def _placed_like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """A DTensor's gradient may come as a sum that is still to be made over ranks; the caller gets the sum."""
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        return gradient.redistribute(placements=parameter.placements)
    return gradient


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def trace(step: StepTrace) -> tuple[GraphModule, list[Slot]]:
    """The graph of a step, as traced, and the slots of its inputs."""
    inputs = step.inputs()
    symbolic = any(not isinstance(size, int) for _, tensor in inputs for size in tensor.shape)
    with _named_failures():
        gm = _torch.functional_trace(step.run, [tensor for _, tensor in inputs], symbolic=symbolic)
    return gm, [slot for slot, _ in inputs]


@contextmanager
def _named_failures() -> Iterator[None]:
    try:
        yield
    except _torch.data_dependent_errors() as error:
        raise CaptureError(
            "the step asks for the value of a tensor, to branch on it or to size something by it",
            where=user_line(error),
            next_step="compute it with tensors (torch.where), or use capture_compiled, which may break the graph",
        ) from error


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        seen = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise CaptureError(
            f"the loss function returned {seen}, not a scalar tensor",
            where="capture_step: loss_fn",
            next_step="return one number as a tensor, such as loss.mean()",
        )


def _check_model(model: nn.Module, held: tuple[Held, ...], reducers: list[DistributedDataParallel]) -> None:
    for name, module in model.named_modules():
        if isinstance(module, (FSDPModule, FullyShardedDataParallel)):
            raise CaptureError(
                f"{name or type(module).__name__} is sharded by torch's FSDP, whose collectives run in hooks unseen",
                where="capture_step",
                next_step="use counterpoint.fully_shard, which takes the same arguments",
            )
    facts = [_torch.reducer_facts(module) for module in reducers]
    if any(fact.hooked for fact in facts):
        raise CaptureError(
            "a communication hook replaces the all-reduce of this DistributedDataParallel module",
            where="capture_step",
            next_step="capture without the hook; reduced precision is mp_policy= of counterpoint.replicate",
        )
    reduced = {id(p) for fact in facts for p in fact.parameters if fact.in_python}
    for tensor in held:
        if id(tensor.tensor) not in reduced and _torch.has_post_accumulate_hooks(tensor.tensor):
            raise CaptureError(
                f"{tensor.name} has a hook that runs after its gradient is accumulated",
                where="capture_step",
                next_step="remove it and pass the optimizer as optimizer=, or reduce with counterpoint.replicate",
            )


def _stand_in_for_reducer(module: DistributedDataParallel, fresh: dict[int, Tensor]) -> None:
    """Do as graph operators what the module's reducer does in C++: copy buffers, average gradients."""
    facts = _torch.reducer_facts(module)
    ranks = Ranks(facts.group.group_name, facts.group.size())
    with torch.no_grad():
        for buffer in facts.buffers:
            fresh[id(buffer)].copy_(broadcast(fresh[id(buffer)], ranks))
    if facts.synchronises:
        for parameter in facts.parameters:
            fresh[id(parameter)].register_hook(lambda gradient: all_reduce(gradient / ranks.size, ranks, "sum"))


def capture_step(
    model: nn.Module,
    loss_fn: LossFn,
    batch: Any,
    *,
    optimizer: Optimizer | None = None,
    train: bool = True,
    dynamic: bool | None = None,
    device: str = "cpu",
    name: str = "step",
) -> CapturedStep:
    """One train step of this rank as a single graph. Nothing is computed, and model and optimizer stay as they are.

    model: plain, on the meta device or fake; with `counterpoint.replicate`, `counterpoint.fully_shard`, DTensor tensor
        parallelism, DistributedDataParallel, or several of them.
    loss_fn: called as `loss_fn(model, batch)`; answers a scalar tensor.
    batch: tensors in any nest of containers; only their shapes and dtypes matter.
    optimizer: adds its update. Settings such as the learning rate become constants of the graph.
    train: False captures the loss alone, without gradients.
    dynamic: True makes every size of the batch above one a symbol, False none, None those that `mark_dynamic` named.
    device: where tensors of the meta device are pretended to lie.
    """
    world = current_world("capture_step")
    step = StepTrace(model, loss_fn, batch, optimizer if train else None, train, dynamic, device)
    gm, inputs = trace(step)
    tidy(gm, inputs)
    outputs = keep_outputs(gm, step.outputs)
    signature = StepSignature(tuple(inputs), outputs)
    write_signature(gm, signature)
    return CapturedStep(
        gm,
        name=name,
        role="step" if train else "inference",
        world_size=world.size,
        rank=world.rank,
        groups=groups_of(gm),
        signature=signature,
    )
