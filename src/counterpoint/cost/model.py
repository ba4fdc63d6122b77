"""What things take, all in one: the object that passes and the simulator ask.

Pure and total: equal questions have equal answers on all ranks, and no question raises. What was measured goes before
what is described, and that before what is usual: a table of measured times, then the links that were measured, then the
topology, then what is typical of the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch.fx import Node

from counterpoint._torch import size_hint
from counterpoint.cost import compute, network
from counterpoint.cost.link import Link, traffic_bytes
from counterpoint.cost.measured import MeasuredTable, operator_key
from counterpoint.cost.presets import topology
from counterpoint.cost.processor import Processor, processor_of
from counterpoint.cost.table import LinkTable, typical
from counterpoint.cost.topology import Topology
from counterpoint.ir.collective import Collective
from counterpoint.ir.groups import Group
from counterpoint.ir.ops import Kind
from counterpoint.options import CompileOptions


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Times of collectives and operators, in microseconds."""

    topology: Topology | None = None
    links: LinkTable = field(default_factory=LinkTable)
    """Links that were measured by two numbers."""
    table: MeasuredTable | None = None
    """Times that were measured, by size and by operator."""
    latency_us: float | None = None
    """Of every call, where the user says so."""
    bandwidth_gbps: float | None = None
    """Of every link, where the user says so."""
    fuses: bool = True
    """Whether generated code puts pointwise neighbours into one kernel."""

    @staticmethod
    def of(options: CompileOptions, links: LinkTable | None = None, *, fuses: bool | None = None) -> CostModel:
        """The model that options and measured links make; OptionError for a topology or a file that there is not."""
        return CostModel(
            topology=None if options.topology is None else topology(options.topology),
            links=links if links is not None else LinkTable(),
            table=None if options.cost_table is None else MeasuredTable.load(options.cost_table),
            latency_us=options.latency_us,
            bandwidth_gbps=options.bandwidth_gbps,
            fuses=options.codegen == "inductor" if fuses is None else fuses,
        )

    @property
    def is_informed(self) -> bool:
        """Whether it knows of a particular cluster, more than two numbers a link."""
        return self.topology is not None or self.table is not None

    def collective_us(
        self,
        kind: Kind,
        nbytes: float,
        ranks: Sequence[int],
        *,
        device_type: str | None = None,
        algorithm: network.Algorithm | None = None,
    ) -> float:
        """One collective, from when all have arrived until the result is there.

        nbytes: of the whole tensor, so what a gather receives and what a reduce-scatter is given. ranks: global ranks.
        algorithm: one that is forced, where a topology is known; else what the library would choose. device_type: of
        the tensors; a topology, where there is one, says it better.
        """
        if len(ranks) < 2:
            return 0.0
        device = self._device(device_type)
        measured = self._measured(kind, nbytes, ranks, device)
        if measured is not None and algorithm is None:
            return measured
        link = self._link(ranks, device)
        if link is not None:
            return link.call_us(traffic_bytes(network.moved(kind, device), nbytes, len(ranks)))
        if self.topology is None:
            return typical(device).call_us(traffic_bytes(network.moved(kind, device), nbytes, len(ranks)))
        found = network.choices(kind, nbytes, ranks, self.topology)
        if algorithm is not None and algorithm in found:
            return found[algorithm]
        return min(us for choice, us in found.items() if choice in network.LIBRARY)

    def _measured(self, kind: Kind, nbytes: float, ranks: Sequence[int], device: str) -> float | None:
        if self.table is None:
            return None
        found = self.table.collective_us(kind, nbytes, ranks)
        return found if found is not None else self.table.collective_us(network.moved(kind, device), nbytes, ranks)

    def _link(self, ranks: Sequence[int], device: str) -> Link | None:
        """The link by two numbers, where these are to be believed rather than the topology."""
        given, measured = (self.latency_us, self.bandwidth_gbps), self.links.link(ranks)
        if measured is None and given == (None, None):
            return None
        link = measured or self._described(ranks, device)
        latency_us, bandwidth_gbps = given
        return Link(
            latency_us=link.latency_us if latency_us is None else latency_us,
            bandwidth_gbps=link.bandwidth_gbps if bandwidth_gbps is None else bandwidth_gbps,
        )

    def _described(self, ranks: Sequence[int], device: str) -> Link:
        """The group's link by two numbers, from measured times or the topology where there are any."""
        measured = self.table.link(ranks) if self.table is not None else None
        if measured is not None:
            return measured
        if self.topology is None:
            return typical(device)
        reach = network.Reach.of(self.topology, ranks)
        if not reach.levels:
            return typical(device)
        quick = network.library_us(Kind.ALL_GATHER, 0.0, ranks, self.topology)
        return Link(latency_us=quick, bandwidth_gbps=reach.ring_gbps(-1))

    def link(self, ranks: Sequence[int], device_type: str | None = None) -> Link:
        """The link of a group by two numbers, for whoever reckons with those: what a small gather takes, and the
        bandwidth of large ones."""
        device = self._device(device_type)
        return self._link(ranks, device) or self._described(ranks, device)

    @property
    def device_type(self) -> str:
        """The kind of device that is meant where a question names none."""
        if self.topology is not None:
            return self.topology.device_type
        return self.table.device_type if self.table is not None else "cpu"

    def _device(self, device_type: str | None) -> str:
        """Who describes a cluster means it, also where the graph was captured on another device."""
        return self.device_type if self.topology is not None or device_type is None else device_type

    def processor(self, device_type: str | None = None) -> Processor:
        """The processor of each rank."""
        return processor_of(device_type or self.device_type) if self.topology is None else self.topology.processor

    def start_cost_us(self, device_type: str | None = None) -> float:
        """What starting a collective and waiting for it keeps the compute stream from computing."""
        return self.processor(device_type).launch_us

    def node_us(self, node: Node) -> float | None:
        """One node on the compute stream; None where nobody knows. Communication takes none here."""
        if compute.takes_no_time(node):
            return 0.0
        measured = self._measured_node_us(node)
        if measured is not None:
            return measured
        estimated = compute.node_us(node, self.processor(_device_of(node)), fuses=self.fuses)
        return estimated if estimated is None or self.table is None else estimated * self.table.estimate_scale

    def measured_key(self, node: Node) -> str | None:
        """The entry of the table that tells what the node takes, if there is one."""
        if self.table is None or not self.table.operators:
            return None
        key = operator_key(node, None if self.topology is None else self.topology.device_type)
        return key if key in self.table.operators else None

    def _measured_node_us(self, node: Node) -> float | None:
        key = self.measured_key(node)
        return None if key is None or self.table is None else self.table.operators[key]

    def channel_of(self, group: Group | str) -> str:
        """The channel on which the collectives of a group follow each other. Groups have channels of their own."""
        return f"group {group}"

    @property
    def text(self) -> str:
        """Equal for equal models; part of what identifies a compile."""
        parts = {
            "topology": self.topology.text if self.topology is not None else "",
            "links": self.links.text,
            "table": self.table.identity if self.table is not None else "",
            "latency": "" if self.latency_us is None else f"{self.latency_us:g}",
            "bandwidth": "" if self.bandwidth_gbps is None else f"{self.bandwidth_gbps:g}",
            "fuses": "yes" if self.fuses else "no",
        }
        return "\n".join(f"{name}: {value}" for name, value in parts.items() if value)


def collective_bytes(collective: Collective) -> int | None:
    """Bytes of the whole tensor that a collective is about; None where a size has no hint."""
    sent, received = size_hint(collective.sent.nbytes), size_hint(collective.received.nbytes)
    return None if sent is None or received is None else max(sent, received)


def _device_of(node: Node) -> str | None:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    device = getattr(first, "device", None)
    return device.type if device is not None else None
