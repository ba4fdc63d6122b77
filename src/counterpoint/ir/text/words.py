"""Names that the graph text has for torch's own things: dtypes, layouts, operators. Both ways, by fixed tables.

Looking a name up never imports or calls anything that the text chooses: an operator is found in torch's registry of
operators, a Python function only in the table below.
"""

from __future__ import annotations

import builtins
import difflib
import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from counterpoint import _torch
from counterpoint.ir import packing, pipelined  # noqa: F401  register operators that a text may name

_SHORT = {
    "bool": "b8",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex32": "c32",
    "complex64": "c64",
    "complex128": "c128",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e4m3fnuz": "f8e4m3fnuz",
    "float8_e5m2": "f8e5m2",
    "float8_e5m2fnuz": "f8e5m2fnuz",
    "float8_e8m0fnu": "f8e8m0fnu",
}


def _own_name(thing: object) -> str:
    return str(thing).removeprefix("torch.")


def _torch_things(kind: type | tuple[type, ...]) -> dict[str, Any]:
    found = (getattr(torch, name) for name in dir(torch))
    return {_own_name(thing): thing for thing in found if isinstance(thing, kind)}


DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {name: dtype for long, dtype in _torch_things(torch.dtype).items() for name in (long, _SHORT.get(long, long))}
)
"""Short and long name to dtype."""
DTYPE_WORDS: Mapping[torch.dtype, str] = MappingProxyType({dtype: name for name, dtype in DTYPES.items()})
"""The name that is printed: short where there is one."""
TORCH_WORDS: Mapping[str, Any] = MappingProxyType(
    {f"torch.{name}": thing for name, thing in _torch_things((torch.layout, torch.memory_format)).items()}
)
"""Layouts and memory formats, written as in Python."""

_OPERATOR = """abs add and_ contains eq floordiv ge getitem gt iadd iand imul index inv invert ior isub le lshift lt
matmul mod mul ne neg not_ or_ pos pow rshift setitem sub truediv truth xor"""
_MATH = """acos acosh asin asinh atan atan2 atanh ceil cos cosh exp fabs floor fmod isclose isfinite isinf isnan ldexp
log log10 log1p log2 pow prod sin sinh sqrt tan tanh trunc"""
_BUILTINS = "abs bool divmod float int len max min pow round sum"
_SYM = "sym_float sym_fresh_size sym_int sym_ite sym_max sym_min sym_not sym_sqrt sym_sum"


def _functions() -> dict[str, Callable[..., Any]]:
    modules = {"operator": (operator, _OPERATOR), "math": (math, _MATH)}
    modules |= {"builtins": (builtins, _BUILTINS), "torch": (torch, _SYM)}
    return _torch.symbolic_math() | {
        f"{prefix}.{name}": getattr(module, name)
        for prefix, (module, names) in modules.items()
        for name in names.split()
        if hasattr(module, name)
    }


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(_functions())
"""The Python functions that a graph may call; a graph that calls another one cannot be written."""
_FUNCTION_WORDS: Mapping[Callable[..., Any], str] = MappingProxyType({f: name for name, f in FUNCTIONS.items()})


def operator_word(target: Any) -> str | None:
    """The name of an operator or function, or None for one that the text has no name for."""
    if isinstance(target, _torch.OpOverload):
        namespace, name, overload = _torch.operator_name(target)
        return f"{namespace}.{name}" if overload == "default" else f"{namespace}.{name}.{overload}"
    if isinstance(target, _torch.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    try:
        return _FUNCTION_WORDS.get(target)
    except TypeError:
        return None


def operator_of(word: str) -> Any | None:
    """The operator or function of a name, or None. Only looks into registries; imports nothing the text names."""
    if word in FUNCTIONS:
        return FUNCTIONS[word]
    namespace, _, rest = word.partition(".")
    name, _, overload = rest.partition(".")
    if namespace == "higher_order":
        return None if overload else _torch.find_higher_order(name)
    return _torch.find_operator(namespace, name, overload or "default")


def advice(word: str) -> str:
    """What to do about an operator name that was not found: its overloads, or the nearest names."""
    namespace, _, rest = word.partition(".")
    name = rest.partition(".")[0]
    overloads = _torch.overload_names(namespace, name)
    if overloads:
        choices = [f"{namespace}.{name}.{o}" if o != "default" else f"{namespace}.{name}" for o in overloads]
        return f"`{namespace}.{name}` has these overloads: {', '.join(sorted(choices)[:12])}"
    known = [*FUNCTIONS, *_torch.all_operator_names()]
    near = difflib.get_close_matches(f"{namespace}.{name}", known, n=4, cutoff=0.7)
    hint = f"near names: {', '.join(near)}; " if near else ""
    return f"{hint}if another library defines it, import that library first (this is torch {torch.__version__})"
