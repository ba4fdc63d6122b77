"""Run as a program: compile a module over DTensor in a pretended world, and print what the record says."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from counterpoint.capture.world import fake_world
from counterpoint.inductor import fingerprint
from counterpoint.report.history import reports


def main() -> None:
    """One compile; library calls only, so that no kernel has to be compiled."""
    # Editing the package between two runs is no change of version here; the hash of sources has a test of its own.
    fingerprint.source_hash = lambda: "these sources"
    with fake_world(2) as world, torch.no_grad():
        mesh = world.mesh()
        weight = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()], src_data_rank=None)

        def sharded(rows: Tensor, weight: DTensor) -> Tensor:
            return (DTensor.from_local(rows, mesh, [Shard(0)]) @ weight).full_tensor()

        torch.compile(sharded, backend="counterpoint", options={"on_error": "raise"})(torch.ones(2, 4), weight)
        (record,) = reports()
        print("record:", record.cache, record.origin, record.ledgers[0])


if __name__ == "__main__":
    main()
