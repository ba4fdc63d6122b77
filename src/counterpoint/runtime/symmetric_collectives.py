"""All-reduces through torch's symmetric memory: the operators of `ir/shared_memory.py` where the tensors lie on a GPU.

So a graph says the same on a laptop and on a node of GPUs. Each call goes through a buffer of the group's own: one-shot
copies the input there within its kernel, the others before it. Complete in stream order.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import torch
from torch import Tensor
from torch.library import impl

from counterpoint._torch import register_operators, symmetric_buffer
from counterpoint.cost.model import CostModel
from counterpoint.cost.symmetric_memory import TWO_SHOT_RANKS, torch_all_reduce_obstacle
from counterpoint.cost.ways import Call, Way, node_topology, peer_us
from counterpoint.errors import SharedMemoryError
from counterpoint.ir.ops import Kind
from counterpoint.ir.shared_memory import NAMES
from counterpoint.runtime.pipelined.groups import sized_group

FIRST_BYTES = 1 << 20
ALIGNED_BYTES = 16
"""What torch's kernels move at once, at best."""


class Buffers:
    """One buffer a group and device, which grows."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.device], Tensor] = {}
        self._lock = threading.Lock()

    def like(self, tensor: Tensor, group_name: str) -> Tensor:
        """Room in symmetric memory for a tensor. A collective call where the buffer has to grow."""
        key = group_name, tensor.device
        with self._lock:
            held = self._held.get(key)
            if held is None or held.nbytes < tensor.nbytes:
                # Peers may still read the smaller one.
                torch.cuda.synchronize(tensor.device)
                nbytes = max(FIRST_BYTES, 1 << (tensor.nbytes - 1).bit_length())
                register_operators()
                self._held[key] = held = symmetric_buffer(group_name, nbytes, tensor.device)
        return held[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def forget(self) -> None:
        """Let go of all of them, as after `destroy_process_group`."""
        with self._lock:
            self._held.clear()


BUFFERS = Buffers()
"""Those that the operators use."""


def one_shot_all_reduce(input: Tensor, group_name: str, out: Tensor) -> None:
    """Every rank reads the inputs of all others."""
    given = input if _aligned(input) else input.clone()
    buffer = BUFFERS.like(given, group_name)
    torch.ops.symm_mem.one_shot_all_reduce_copy_out(buffer, given, "sum", group_name, out)


def two_shot_all_reduce(input: Tensor, group_name: str, out: Tensor) -> None:
    """Every rank adds up a part of the input, then collects the others' parts."""
    buffer = BUFFERS.like(input, group_name)
    buffer.copy_(input)
    if sized_group("shm_two_shot_all_reduce", group_name).size() in TWO_SHOT_RANKS:
        torch.ops.symm_mem.two_shot_all_reduce_out(buffer, "sum", group_name, out)
    else:
        out.copy_(torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", group_name))


def multicast_all_reduce(input: Tensor, group_name: str, out: Tensor) -> None:
    """The switch adds up what every rank reads, and copies what it writes."""
    buffer = BUFFERS.like(input, group_name)
    buffer.copy_(input)
    out.copy_(torch.ops.symm_mem.multimem_all_reduce_(buffer, "sum", group_name))


@functools.cache
def prefers_two_shot(nbytes: int, ranks: int) -> bool:
    """Whether two exchanges are quicker for a size, on the links that nodes with peer access usually have."""
    sent = Call(
        kind=Kind.ALL_REDUCE,
        nbytes=(nbytes,),
        dtypes=(torch.float32,),
        ranks=tuple(range(ranks)),
        device_type="cuda",
    )
    one, two = (peer_us(way, sent, node_topology(CostModel())) for way in (Way.ONE_SHOT, Way.TWO_SHOT))
    return one is not None and two is not None and two < one


def all_reduce(input: Tensor, group_name: str, out: Tensor) -> None:
    """One-shot or two-shot, as costs say for the size."""
    ranks = sized_group("shm_all_reduce", group_name).size()
    two = prefers_two_shot(input.nbytes, ranks)
    (two_shot_all_reduce if two else one_shot_all_reduce)(input, group_name, out)


Reduce = Callable[[Tensor, str, Tensor], None]

ALL_REDUCES: dict[str, Reduce] = {
    "shm_all_reduce": all_reduce,
    "shm_one_shot_all_reduce": one_shot_all_reduce,
    "shm_two_shot_all_reduce": two_shot_all_reduce,
    "shm_multicast_all_reduce": multicast_all_reduce,
}


def _aligned(tensor: Tensor) -> bool:
    return tensor.data_ptr() % ALIGNED_BYTES == 0


def _reduced(name: str, input: Tensor, reduce_op: str, group_name: str, out: Tensor | None) -> Tensor:
    obstacle = torch_all_reduce_obstacle(dtypes=(input.dtype,), nbytes=(input.nbytes,), reduce_op=reduce_op)
    if obstacle is not None:
        raise SharedMemoryError(
            obstacle, where=f"{name} of group {group_name}", next_step="reduce it with the library's all-reduce"
        )
    result = input.new_empty(input.shape) if out is None else out
    if input.numel() == 0:
        return result
    fits = result.is_contiguous() and _aligned(result)
    filled = result if fits else torch.empty_like(result, memory_format=torch.contiguous_format)
    ALL_REDUCES[name](input.detach().contiguous(), group_name, filled.detach())
    if filled is not result:
        result.copy_(filled)
    return result


def _register(name: str) -> None:
    def functional(input: Tensor, reduce_op: str, group_name: str) -> Tensor:
        return _reduced(name, input, reduce_op, group_name, None)

    def in_place(input: Tensor, reduce_op: str, group_name: str) -> Tensor:
        return _reduced(name, input, reduce_op, group_name, input)

    def into(input: Tensor, reduce_op: str, group_name: str, *, out: Tensor) -> Tensor:
        return _reduced(name, input, reduce_op, group_name, out)

    for suffix, function in (("", functional), ("_", in_place), ("_out", into)):
        impl(NAMES[name + suffix], "CUDA", function)


for _name in ALL_REDUCES:
    _register(_name)
