"""Symbolic sizes: symbols, what is known of them, and the functions of their expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


def size_hint(size: int | torch.SymInt) -> int | None:
    """What a size is likely to be, without a guard: its hint where it is symbolic, None where it has none."""
    if not isinstance(size, torch.SymInt):
        return size
    return int(size.node.hint) if size.node.has_hint() else None


def new_symbol(shape_env: Any, name: str, hint: int) -> torch.SymInt:
    """A fresh symbolic size of a shape environment, with a hint."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource(name)
    symbol = shape_env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
    created: torch.SymInt = shape_env.create_symintnode(symbol, hint=hint, source=source)
    return created


_SYMBOLIC = (
    "FloorDiv",
    "ModularIndexing",
    "Where",
    "PythonMod",
    "Mod",
    "CleanDiv",
    "CeilToInt",
    "FloorToInt",
    "CeilDiv",
    "LShift",
    "RShift",
    "Max",
    "Min",
    "PowByNatural",
    "FloatPow",
    "FloatTrueDiv",
    "IntTrueDiv",
    "TruncToFloat",
    "TruncToInt",
    "RoundToInt",
    "RoundDecimal",
    "ToFloat",
    "Identity",
    "OpaqueUnaryFn_sqrt",
    "OpaqueUnaryFn_cos",
    "OpaqueUnaryFn_sin",
    "OpaqueUnaryFn_exp",
    "OpaqueUnaryFn_log2",
)


def symbolic_functions() -> dict[str, Any]:
    """The functions that symbolic shape expressions are made of, by name."""
    from torch.utils._sympy import functions, numbers

    table = {name: getattr(functions, name) for name in _SYMBOLIC if hasattr(functions, name)}
    return table | {"int_oo": numbers.int_oo}


class SymbolFacts(NamedTuple):
    """What a shape environment knows about one symbol."""

    hint: int | float | None
    lower: Any
    upper: Any
    size_like: bool


def symbol_facts(shape_env: Any, symbol: Any) -> SymbolFacts:
    """Hint, range and size-likeness of a symbol."""
    bounds = shape_env.var_to_range[symbol]
    hint = _backed_values(shape_env).get(symbol)
    plain = None if hint is None else int(hint) if hint.is_Integer else float(hint)
    return SymbolFacts(plain, bounds.lower, bounds.upper, symbol in getattr(shape_env, "size_like", ()))


def _backed_values(shape_env: Any) -> dict[Any, Any]:
    # Renamed in 2.12; the old name then warns.
    values: dict[Any, Any] | None = getattr(shape_env, "backed_var_to_val", None)
    return shape_env.var_to_val if values is None else values


def declare_symbol(shape_env: Any, symbol: Any, facts: SymbolFacts) -> None:
    """Register a symbol that was read from a text, as if the environment had created it."""
    import sympy
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import ValueRangesSLoc
    from torch.utils._sympy.value_ranges import ValueRanges

    shape_env.var_to_range[symbol] = ValueRanges(facts.lower, facts.upper)
    here = shape_env._get_sloc()
    shape_env.var_to_range_sloc[symbol] = ValueRangesSLoc(here, here)
    shape_env.var_to_sources[symbol] = [ConstantSource(symbol.name)]
    kind, number = symbol.name.rstrip("0123456789"), int(symbol.name.lstrip("suzf"))
    if facts.hint is not None:
        _backed_values(shape_env)[symbol] = sympy.sympify(facts.hint)
    if facts.size_like and hasattr(shape_env, "size_like"):
        shape_env.size_like.add(symbol)
    # Later symbols of this environment must not reuse the number.
    if kind == "u":
        shape_env.unbacked_symint_counter = max(shape_env.unbacked_symint_counter, number + 1)
    elif kind == "zuf":
        shape_env.unbacked_symfloat_counter = max(shape_env.unbacked_symfloat_counter, number + 1)
    elif hasattr(shape_env, "unique_ids"):
        shape_env.unique_ids.add(number)


def known_facts(shape_env: Any) -> list[Any]:
    """What a shape environment assumes beyond the ranges: guards, divisibility and runtime assertions."""
    import sympy

    facts = [guard.expr for guard in shape_env.guards]
    facts += [a.expr for asserts in shape_env.deferred_runtime_asserts.values() for a in asserts]
    facts += [sympy.Eq(modulo, 0, evaluate=False) for modulo in shape_env.divisible]
    return [shape_env.replace(fact) for fact in facts]


def assume_fact(shape_env: Any, fact: Any) -> None:
    """Add a fact read from a text, exactly as it stands: evaluating it could drop it or add others."""
    from torch._guards import ShapeGuard
    from torch.fx.experimental.symbolic_shapes import RuntimeAssert, free_unbacked_symbols
    from torch.utils._traceback import CapturedTraceback

    unbacked = sorted(free_unbacked_symbols(fact), key=lambda s: (s.name.rstrip("0123456789"), len(s.name), s.name))
    if unbacked:
        assertion = RuntimeAssert(fact, f"assumed by the graph text: {fact}", CapturedTraceback.extract())
        shape_env.deferred_runtime_asserts.setdefault(unbacked[-1], []).append(assertion)
        shape_env.num_deferred_runtime_asserts += 1
    else:
        shape_env.guards.append(ShapeGuard(fact, shape_env._get_sloc(), size_oblivious=False))
    shape_env.axioms.update(dict(shape_env.get_implications(fact)))
    modulo = symbolic_functions()["Mod"]
    if getattr(fact, "rel_op", None) == "==" and isinstance(fact.lhs, modulo) and fact.rhs == 0:
        shape_env._add_divisible(fact.lhs)
    shape_env._update_version_counter()


def binding_path(keys: tuple[Any, ...]) -> list[str | int] | None:
    """Where in a node's value an unbacked symbol is bound, as plain data; None for a path that has no plain form."""
    from torch.fx.experimental.symbolic_shapes import CallMethodKey
    from torch.utils._pytree import SequenceKey

    path: list[str | int] = []
    for key in keys:
        if isinstance(key, CallMethodKey) and key.name in _BINDING_METHODS:
            path.append(key.name)
        elif isinstance(key, SequenceKey):
            path.append(key.idx)
        else:
            return None
    return path


_BINDING_METHODS = ("size", "stride", "storage_offset")


def binding_keys(path: list[str | int]) -> tuple[Any, ...] | None:
    """The reverse of `binding_path`; None for a path that names anything but sizes, strides and offsets."""
    from torch.fx.experimental.symbolic_shapes import CallMethodKey
    from torch.utils._pytree import SequenceKey

    if not all(type(step) is int or step in _BINDING_METHODS for step in path):
        return None
    return tuple(SequenceKey(step) if isinstance(step, int) else CallMethodKey(step) for step in path)


def symbolic_math() -> dict[str, Callable[..., Any]]:
    """Functions on symbolic numbers that graphs call under private names."""
    names = ("acos", "asin", "atan", "cos", "cosh", "log2", "sin", "sinh", "sqrt", "tan", "tanh")
    return {f"torch._sym_{n}": getattr(torch, f"_sym_{n}") for n in names if hasattr(torch, f"_sym_{n}")}
