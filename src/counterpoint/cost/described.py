"""What ranks could do with each other by what is said of a cluster: for planning, where there are no ranks to ask."""

from __future__ import annotations

from collections.abc import Sequence

from counterpoint.cost.capabilities import NOTHING, Capabilities, Capability, absent
from counterpoint.cost.topology import Topology


def described_capabilities(cluster: Topology | None, ranks: Sequence[int]) -> Capabilities:
    """The capabilities of a group on a topology; `NOTHING` where none is described."""
    if cluster is None:
        return NOTHING
    level = cluster.level_of(ranks)
    reach = Capability(True, f"described by {cluster.name}") if level.peer_access else absent(f"not over {level.name}")
    none, on_host = absent(f"not on {cluster.device_type}"), cluster.device_type == "cpu"
    inside = cluster.levels[0]
    units = [inside.unit_of(rank) for rank in ranks]
    return Capabilities(
        messages=Capability(True, "taken for granted"),
        shared_memory=reach if on_host else none,
        symmetric_memory=none if on_host else reach,
        multicast=reach if level.multicast else absent(f"not over {level.name}"),
        hosts=tuple(unit - units[0] for unit in units) if len(cluster.levels) > 1 else (),
    )
