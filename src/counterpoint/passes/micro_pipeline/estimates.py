"""What a rewrite would overlap, in microseconds: from the cost model where there is one, else from what is usual."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch.fx import Node

from counterpoint._torch import size_hint
from counterpoint.cost.compute import node_us, processor_of
from counterpoint.cost.link import Link, traffic_bytes
from counterpoint.cost.table import LinkTable, typical
from counterpoint.ir import metadata, ops
from counterpoint.ir.ops import Kind
from counterpoint.passes.base import PassContext
from counterpoint.passes.micro_pipeline.choice import Work
from counterpoint.passes.micro_pipeline.rewrite import GatherPlan, Plan


@dataclass(frozen=True)
class Estimates:
    """Times of the nodes of one graph."""

    context: PassContext

    @cached_property
    def _model(self) -> Any:
        return self.context.cost_model if hasattr(self.context.cost_model, "collective_us") else None

    def compute_us(self, node: Node) -> float:
        """The time of a node; nothing where that is not known, so that nothing is planned to hide behind it."""
        if self._model is not None:
            return float(self._model.node_us(node) or 0.0)
        return node_us(node, processor_of(metadata.tensor_of(node).device.type))

    def communication_us(self, start: Node) -> float:
        """The time of a collective."""
        kind, nbytes, device = _kind(start), _nbytes(start), _device(start)
        ranks = self._ranks(start)
        if self._model is not None:
            return float(self._model.collective_us(kind, nbytes, ranks, device_type=device))
        return self._link(start).call_us(traffic_bytes(kind, nbytes, len(ranks)))

    def work(self, plan: Plan) -> Work:
        """What a plan would overlap."""
        start, device = plan.starts[0], _device(plan.starts[0])
        if isinstance(plan, GatherPlan):
            products, parts = [use.product for use in plan.uses], plan.gather.ranks
        else:
            products, parts = list(plan.scatter.products), plan.scatter.ranks or 1
        processor = processor_of(device)
        return Work(
            communication_us=sum(map(self.communication_us, plan.starts)),
            latency_us=self._link(start).latency_us,
            compute_us=sum(self.compute_us(product.node) for product in products),
            launch_us=processor.launch_us if self._model is None else float(self._model.start_cost_us(device)),
            pieces=parts,
            device_type=device,
        )

    def _ranks(self, start: Node) -> tuple[int, ...]:
        name = ops.argument(start, "group_name")
        if name in self.context.groups:
            return self.context.groups[name]
        spec = ops.spec_of(start.target)
        size = ops.argument(start, spec.group_size) if spec is not None and spec.group_size else 2
        return tuple(range(size))

    def _link(self, start: Node) -> Link:
        """The link of the collective's group: as the options say, else as measured, else as is usual."""
        ranks, device = self._ranks(start), _device(start)
        table = self.context.topology if isinstance(self.context.topology, LinkTable) else LinkTable()
        link = self._model.link(ranks, device) if self._model is not None else table.link(ranks) or typical(device)
        options = self.context.options
        given = {"latency_us": options.latency_us, "bandwidth_gbps": options.bandwidth_gbps}
        return replace(link, **{name: value for name, value in given.items() if value is not None})


def _kind(start: Node) -> Kind:
    spec = ops.spec_of(start.target)
    return spec.kind if spec is not None else Kind.ALL_REDUCE


def _device(start: Node) -> str:
    return metadata.tensor_of(start).device.type


def _nbytes(start: Node) -> int:
    """Bytes of the whole tensor, a symbolic size by its hint."""
    sizes = (metadata.nbytes_of(metadata.tensor_of(node)) for node in (start, *start.all_input_nodes[:1]))
    return max(size_hint(size) or 0 for size in sizes)
