"""Generated code on real gloo ranks: every collective, in place and out of place, gives what eager mode gives.

One function holds many of them, so that a rank compiles once. Values are small whole numbers, so every comparison is
bitwise; every function runs twice, so that a buffer that is reused too early shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo import mark_dynamic

from counterpoint._torch import torch_version
from tests.support.gloo import RanksByWorldSize

C10D = torch.ops._c10d_functional
ROWS = 8


def wait(started: Any) -> Any:
    return [C10D.wait_tensor(each) for each in started] if isinstance(started, list) else C10D.wait_tensor(started)


def reductions(x: Tensor, w: Tensor) -> list[Tensor]:
    """Of inputs that die, live on, are inputs of the graph, views, permuted, shared or empty."""
    group = dist.group.WORLD.group_name
    product, live, shared = x @ w, w @ x, (x @ w) @ w
    started = [
        C10D.all_reduce(product, "sum", group),
        C10D.all_reduce(live, "max", group),
        C10D.all_reduce(x, "min", group),
        C10D.all_reduce((x @ x).view(-1)[:ROWS], "sum", group),
        C10D.all_reduce((w @ w).t(), "sum", group),
        C10D.all_reduce(shared, "sum", group),
        C10D.all_reduce(shared, "product", group),
        C10D.all_reduce(x[:0], "sum", group),
    ]
    beside = (live + 1) @ w
    return [
        *(wait(each) + 1 for each in started),
        live,
        beside,
        *wait(C10D.all_reduce_coalesced([x @ w, x], "sum", group)),
    ]


def others(x: Tensor, w: Tensor) -> list[Tensor]:
    """Gathers, scatters, exchanges and broadcasts, of what dies and of what lives on."""
    group, size = dist.group.WORLD.group_name, dist.get_world_size()
    product = x @ w
    gathered = C10D.all_gather_into_tensor(product, size, group)
    given = []
    if torch_version() >= (2, 12):
        # Older versions cannot trace an operator that writes a buffer it is given.
        given.append(C10D.all_gather_into_tensor_out(w @ x, size, group, out=x.new_empty((size * ROWS, ROWS))))
    beside = (w @ w) @ x
    scattered = C10D.reduce_scatter_tensor(x @ x, "sum", size, group)
    many = C10D.reduce_scatter_tensor_coalesced([x @ w, w], "sum", size, group)
    lists = C10D.all_gather_into_tensor_coalesced([x, beside], size, group)
    exchanged = C10D.all_to_all_single(x @ w, [ROWS // size] * size, [ROWS // size] * size, group)
    sent = C10D.broadcast(x @ w, size - 1, group)
    kept = C10D.broadcast(product, 0, group)
    return [
        *map(wait, (gathered, *given, scattered, exchanged, sent, kept)),
        beside * 2,
        product - 1,
        *wait(many),
        *wait(lists),
    ]


def grows(x: Tensor, w: Tensor) -> list[Tensor]:
    """With as many rows as it is given."""
    group, size = dist.group.WORLD.group_name, dist.get_world_size()
    summed = C10D.all_reduce(x @ w, "sum", group)
    gathered = C10D.all_gather_into_tensor(x @ w, size, group)
    return [wait(summed) @ w, wait(gathered) @ w]


def run_compiled(function: Callable[..., Any], passes: str) -> list[str]:
    """What differs between eager and compiled mode on this rank; the ranks come along at their own pace."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    compiled = torch.compile(function, backend="counterpoint", options={"passes": passes, "on_error": "raise"})
    found = []
    for turn in range(2):
        rows = ROWS * (turn + 1) if function is grows else ROWS
        x, w = (torch.randint(-2, 3, (n, ROWS), generator=generator).float() for n in (rows, ROWS))
        if function is grows:
            mark_dynamic(x, 0)
        given = x.clone(), w.clone()
        expected, results = function(x, w), compiled(x, w)
        pairs = zip((*expected, *given), (*results, x, w), strict=True)
        found += [f"turn {turn}, value {i}" for i, (one, other) in enumerate(pairs) if not torch.equal(one, other)]
    return found


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("function", "world", "passes"),
    [(reductions, 2, ""), (others, 2, "schedule-waits"), (others, 4, ""), (grows, 2, "")],
)
def test_generated_code_computes_what_eager_mode_does(
    ranks: RanksByWorldSize, function: Callable[..., Any], world: int, passes: str
) -> None:
    answers = ranks(world).run(run_compiled, function, passes, reset_compiler=True)
    assert answers == [[]] * world
