"""What a rewrite would overlap, in microseconds, by the cost model of the compile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch.fx import Node

from counterpoint._torch import size_hint
from counterpoint.cost.model import CostModel
from counterpoint.cost.table import LinkTable
from counterpoint.ir import metadata, ops
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.ops import Kind
from counterpoint.passes.base import PassContext
from counterpoint.passes.micro_pipeline.choice import Work
from counterpoint.passes.micro_pipeline.exchanges import ExchangePlan
from counterpoint.passes.micro_pipeline.rewrite import GatherPlan, Plan


class _LinkTimes(NamedTuple):
    communication_us: float
    latency_us: float
    launch_us: float
    device_type: str


@dataclass(frozen=True)
class Estimates:
    """Times of the nodes of one graph."""

    model: CostModel
    groups: GroupTable
    _known_us: dict[tuple[Any, ...], float] = field(default_factory=dict)
    """Times of matmuls by what they compute; the layers of a model repeat them."""
    _links: dict[tuple[Any, ...], _LinkTimes] = field(default_factory=dict)

    @staticmethod
    def of(context: PassContext) -> Estimates:
        """By the model of the context, or by one of its options and of what links usually are."""
        links = context.topology if isinstance(context.topology, LinkTable) else None
        return Estimates(context.cost_model or CostModel.of(context.options, links), context.groups)

    def compute_us(self, node: Node) -> float:
        """The time of a matmul; nothing where that is not known, so that nothing is planned to hide behind it."""
        key = (node.target, *(_form(operand) for operand in (node, *node.all_input_nodes)))
        if key not in self._known_us:
            self._known_us[key] = self.model.node_us(node) or 0.0
        return self._known_us[key]

    def _times(self, start: Node) -> _LinkTimes:
        spec = ops.spec_of(start.target)
        kind = spec.kind if spec is not None else Kind.ALL_REDUCE
        nbytes, ranks, device = _nbytes(start), self._ranks(start), _device(start)
        key = (kind, nbytes, ranks, device)
        found = self._links.get(key)
        if found is None:
            found = self._links[key] = _LinkTimes(
                communication_us=self.model.collective_us(kind, nbytes, ranks, device_type=device),
                latency_us=self.model.link(ranks, device).latency_us,
                launch_us=self.model.start_cost_us(device),
                device_type=device,
            )
        return found

    def work(self, plan: Plan) -> Work:
        """What a plan would overlap."""
        first, *others = map(self._times, plan.starts)
        if isinstance(plan, ExchangePlan):
            products, parts = list(plan.products), plan.ranks
        elif isinstance(plan, GatherPlan):
            products, parts = [use.product for use in plan.uses], plan.gather.ranks
        else:
            products, parts = list(plan.scatter.products), plan.scatter.ranks or 1
        return Work(
            communication_us=first.communication_us + sum(other.communication_us for other in others),
            latency_us=first.latency_us,
            compute_us=sum(self.compute_us(product.node) for product in products),
            launch_us=first.launch_us,
            pieces=parts,
            device_type=first.device_type,
            gathers=isinstance(plan, GatherPlan) or (isinstance(plan, ExchangePlan) and plan.behind),
        )

    def _ranks(self, start: Node) -> tuple[int, ...]:
        name = ops.argument(start, "group_name")
        if name in self.groups:
            return self.groups[name]
        spec = ops.spec_of(start.target)
        if spec is not None and spec.kind is Kind.ALL_TO_ALL:
            return tuple(range(len(ops.argument(start, "input_split_sizes"))))
        size = ops.argument(start, spec.group_size) if spec is not None and spec.group_size else 2
        return tuple(range(size))


def _form(operand: Node) -> tuple[Any, ...]:
    tensor = metadata.tensor_of(operand)
    # Symbols that have no hash of their own are told apart by their text.
    return tensor.dtype, *(size if isinstance(size, int) else str(size) for size in tensor.shape)


def _device(start: Node) -> str:
    return metadata.tensor_of(start).device.type


def _nbytes(start: Node) -> int:
    """Bytes of the whole tensor, a symbolic size by its hint."""
    sizes = (metadata.nbytes_of(metadata.tensor_of(node)) for node in (start, *start.all_input_nodes[:1]))
    return max(size_hint(size) or 0 for size in sizes)
