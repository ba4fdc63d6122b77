"""What the door writes computes what was there before, also where it writes torch's operators, on real ranks.

Torch's fused operators have no code for the CPU; the plain sequences that torch gives as their meaning stand in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from torch import Tensor
from torch.distributed._functional_collectives import all_gather_tensor, reduce_scatter_tensor
from torch.fx.experimental.proxy_tensor import make_fx

STAND_INS: list[torch.library.Library] = []
MEANINGS = {
    "fused_all_gather_matmul": "_fused_all_gather_matmul_fallback",
    "fused_matmul_reduce_scatter": "_fused_matmul_reduce_scatter_fallback",
}


def stand_in() -> None:
    """Let torch's operators run on the CPU, once in a process."""
    if not STAND_INS:
        STAND_INS.append(torch.library.Library("symm_mem", "IMPL"))
        for name, meaning in MEANINGS.items():
            STAND_INS[0].impl(name, getattr(symmetric_memory, meaning), "CPU")


def integers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(dist.get_rank() + sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).float()


def gathered(dim: int, returned: bool) -> Callable[..., Any]:
    def function(shard: Tensor, other: Tensor, more: Tensor) -> Any:
        whole = all_gather_tensor(shard, dim, dist.group.WORLD)
        return whole @ other, whole @ more, *((whole,) if returned else ())

    return function


def scattered(dim: int, reduce_op: str) -> Callable[..., Any]:
    def function(left: Tensor, right: Tensor) -> Any:
        return (reduce_scatter_tensor(left @ right, reduce_op, dim, dist.group.WORLD),)

    return function


def job_compare() -> list[str]:
    """What differs from the graph as it was, in value or in strides; and how many calls of torch's there were."""
    # Importing inductor warns, which is an error where tests are collected.
    from torch._inductor.decomposition import decompositions
    from torch._inductor.fx_passes.post_grad import remove_noop_ops, view_to_reshape

    from counterpoint.inductor.fx_passes.micro_pipeline_tp import micro_pipeline_tp_pass

    stand_in()
    ranks = dist.get_world_size()
    cases: list[tuple[str, Callable[..., Any], tuple[Tensor, ...]]] = []
    for shape, dim in (((4, 6), 0), ((2, 3, 6), 0), ((2, 3, 6), 1), ((2, 1024), 1)):
        inner = shape[-1] * (ranks if dim == len(shape) - 1 else 1)
        operands = integers(*shape), integers(inner, 5), integers(inner, 2)
        cases += [(f"gather {shape} {dim} {kept}", gathered(dim, kept), operands) for kept in (True, False)]
    for shape, dim in (((8, 6), 0), ((4, 3, 6), 0), ((3, 4, 6), 1), ((3, 6), 1), ((2, 3, 6), 2)):
        operands = integers(*shape), integers(6, 8)
        cases += [(f"scatter {shape} {dim} {op}", scattered(dim, op), operands) for op in ("sum", "avg")]
    lines, written = list[str](), 0
    for name, function, operands in cases:
        gm = make_fx(function, decompositions, tracing_mode="fake")(*operands)
        remove_noop_ops(gm.graph)
        view_to_reshape(gm)
        expected = gm(*operands)
        with symmetric_memory._test_mode():
            micro_pipeline_tp_pass(gm.graph)
            gm.recompile()
            found = gm(*operands)
        written += sum(str(node.target).startswith("symm_mem.fused") for node in gm.graph.nodes)
        for one, other in zip(expected, found, strict=True):
            if not torch.equal(one, other) or one.stride() != other.stride():
                lines.append(name)
    return [*lines, *([f"only {written} of torch's operators"] if written < len(cases) - 1 else [])]


@pytest.mark.filterwarnings("ignore:.*is deprecated. Please use:FutureWarning")
@pytest.mark.parametrize("world_size", [2, 4])
def test_values_and_strides_are_those_of_the_graph_before(ranks: Any, world_size: int) -> None:
    assert ranks(world_size).run(job_compare) == [[]] * world_size
