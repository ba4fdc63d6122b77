"""The kernels as Python functions, and the numbers by which they know element types and reductions."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import torch

from counterpoint.cost import shared_memory as cost
from counterpoint.cost.shared_memory import supports as supports
from counterpoint.runtime.shared_memory.build import built_library

TYPES: Mapping[torch.dtype, int] = MappingProxyType({dtype: number for number, dtype in enumerate(cost.TYPES)})
OPERATIONS: Mapping[str, int] = MappingProxyType({name: number for number, name in enumerate(cost.OPERATIONS)})
KINDS = ("", "one-shot all-reduce", "two-shot all-reduce", "all-gather", "reduce-scatter")


class Fault(ctypes.Structure):
    """What ended the work of a group; see segment.h."""

    _fields_ = (
        ("failure", ctypes.c_int32),
        ("noticed_by", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("theirs", ctypes.c_uint64),
    )


Interrupted = ctypes.CFUNCTYPE(ctypes.c_int)

_POINTER, _SIZE, _INT, _STEP = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint32
_SIGNATURES: Mapping[str, tuple[object, tuple[object, ...]]] = MappingProxyType(
    {
        "cp_context_bytes": (_SIZE, ()),
        "cp_segment_bytes": (_SIZE, (_INT, _SIZE)),
        "cp_join": (
            _INT,
            (
                _POINTER,
                _POINTER,
                _INT,
                _INT,
                _SIZE,
                ctypes.c_int64,
                ctypes.c_int64,
                ctypes.POINTER(ctypes.c_int),
                Interrupted,
                _STEP,
            ),
        ),
        "cp_fault": (None, (_POINTER, ctypes.POINTER(Fault))),
        "cp_combine": (_INT, (_POINTER, ctypes.POINTER(ctypes.c_void_p), _INT, _SIZE, _INT, _INT)),
        "cp_one_shot": (_INT, (_POINTER, _POINTER, _POINTER, _SIZE, _INT, _INT)),
        "cp_two_shot": (_INT, (_POINTER, _POINTER, _POINTER, _SIZE, _INT, _INT)),
        "cp_all_gather": (_INT, (_POINTER, _POINTER, _POINTER, _SIZE)),
        "cp_reduce_scatter": (_INT, (_POINTER, _POINTER, _POINTER, _SIZE, _INT, _INT)),
        "cp_wait_returned": (_INT, (_POINTER, _STEP)),
        "cp_wait_lent": (_INT, (_POINTER, _INT, _STEP)),
        "cp_lend": (_INT, (_POINTER, _STEP)),
        "cp_return": (_INT, (_POINTER, _STEP)),
    }
)


def load(path: Path) -> ctypes.CDLL:
    """The library at a path, its functions typed."""
    library = ctypes.CDLL(str(path))
    for name, (returned, taken) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = returned, taken
    return library


@cache
def library_path() -> Path:
    """Where this process's kernels are, built at the first call; SharedMemoryError where they cannot be."""
    return built_library()


@cache
def kernels() -> ctypes.CDLL:
    """The kernels of this process; SharedMemoryError where they cannot be built."""
    return load(library_path())
