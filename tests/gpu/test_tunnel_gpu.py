"""The wind tunnel on a GPU: a channel keeps its time, also while products occupy every multiprocessor."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist

from counterpoint.ir.ops import Kind
from counterpoint.runtime.tunnel import Timing, open_tunnel

pytestmark = [
    pytest.mark.gpu,
    # Closing the tunnel resets the compiler, which torch 2.11 imports then.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]
CALL_MS, CALLS = 2.0, 20


class Fixed:
    def collective_us(self, kind: Kind, nbytes: float, ranks: Sequence[int], *, device_type: str) -> float:
        return CALL_MS * 1e3


def milliseconds(busy: bool) -> float:
    """What a row of collectives takes, perhaps beside products."""
    part, whole = torch.ones(1024, device="cuda"), torch.empty(8 * 1024, device="cuda")
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)
        begin.record()
        works = [dist.all_gather_into_tensor(whole, part, async_op=True) for _ in range(CALLS)]
        for _ in range(8 if busy else 0):
            torch.mm(square, square)
        for work in works:
            work.wait()
        end.record()
        torch.cuda.synchronize()
    return begin.elapsed_time(end)


@pytest.mark.parametrize("busy", [False, True])
def test_collectives_of_a_channel_follow_each_other_without_gaps(busy: bool) -> None:
    with open_tunnel(8, timing=Timing(costs=Fixed())):
        assert milliseconds(busy) == pytest.approx(CALL_MS * CALLS, rel=0.05)
