"""All-reduces on symmetric memory beside the sums that they should give, for tests and benchmarks on one GPU."""

from __future__ import annotations

import torch
import torch.distributed as dist

from counterpoint.ir.shared_memory import OPS
from counterpoint.runtime import symmetric_collectives  # noqa: F401  registers what runs

FORMS = ("shm_one_shot_all_reduce", "shm_two_shot_all_reduce", "shm_all_reduce")
PARTS = {
    "whole": lambda x: x,
    "odd offset": lambda x: x[2:1030],
    "transposed": lambda x: x[:4096].view(64, 64).t(),
    "rows": lambda x: x[:4096].view(64, 64)[:, :16],
    "empty": lambda x: x[:0],
}


def wrong_sums() -> list[str]:
    """Which operators give something else than the sum, in and out of place."""
    rank, ranks, name = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name
    base = torch.arange(16 * 1024, device="cuda") % 7
    total = ranks * base + ranks * (ranks - 1) // 2
    wrong = []
    for dtype in (torch.float32, torch.bfloat16):
        for part, take in PARTS.items():
            expected = take(total.to(dtype))
            for form in FORMS:
                mine = take((base + rank).to(dtype))
                given = mine.clone()
                results = [
                    getattr(OPS, form)(mine, "sum", name),
                    getattr(OPS, f"{form}_out")(mine, "sum", name, out=torch.empty_like(expected)),
                    expected + (mine - given),
                    getattr(OPS, f"{form}_")(mine, "sum", name),
                ]
                wrong += [f"{form} {part} {dtype}" for result in results if not torch.equal(result, expected)]
    return wrong
