"""The only door, beside `inductor/`, to torch names that are not public. Each entry says which versions need what."""

from __future__ import annotations

import functools
import importlib
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

# Loading these registers the operators and the fake kernels of functional collectives, which graphs refer to.
import torch.distributed._functional_collectives
from torch._library.fake_class_registry import FakeScriptObject
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx import traceback as fx_traceback
from torch.fx.passes.shape_prop import TensorMetadata, _extract_tensor_metadata
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

from counterpoint.errors import UnsupportedTorchError

OLDEST_TORCH = (2, 11)

__all__ = [
    "OLDEST_TORCH",
    "FakeTensor",
    "FakeTensorMode",
    "Formal",
    "HigherOrderOperator",
    "NameLog",
    "OpOverload",
    "OpOverloadPacket",
    "SymbolFacts",
    "all_operator_names",
    "assume_fact",
    "binding_keys",
    "binding_path",
    "bring_back",
    "declare_symbol",
    "fake_tensor",
    "find_higher_order",
    "find_operator",
    "forget_names",
    "formals",
    "graph_size",
    "group_name",
    "has_registered_effect",
    "in_backward",
    "is_erased",
    "joined_mesh",
    "known_facts",
    "new_symbol",
    "operator_name",
    "overload_names",
    "place_of",
    "real_object",
    "register_operators",
    "require_supported_torch",
    "strided_shard",
    "symbol_facts",
    "symbolic_functions",
    "symbolic_math",
    "tensor_metadata",
    "torch_version",
    "traces_restored_attributes",
    "tree_map",
]


def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def require_supported_torch() -> None:
    """Raise unless the installed torch is new enough. Entries call this first, before anything private is reached."""
    if torch_version() < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise UnsupportedTorchError(
            f"torch {torch.__version__} is older than {oldest}, the oldest supported version",
            next_step=f"install torch {oldest} or newer",
        )


def register_operators() -> None:
    """Load the modules whose import registers communicating operators: DTensor's and those of symmetric memory.

    They are not loaded with this package because they take a second that most callers do not need.
    """
    import torch.distributed._symmetric_memory
    import torch.distributed.tensor  # noqa: F401


class Formal(NamedTuple):
    """One formal argument of an operator's schema."""

    name: str
    kwarg_only: bool
    has_default: bool
    default: Any
    aliases: bool
    """The result may share this argument's storage."""
    written: bool
    """The operator writes into this argument."""


def formals(overload: OpOverload) -> tuple[Formal, ...]:
    """The formal arguments of an operator, in order."""
    return tuple(
        Formal(
            name=a.name,
            kwarg_only=a.kwarg_only,
            has_default=a.has_default_value(),
            default=a.default_value,
            aliases=a.alias_info is not None,
            written=a.alias_info is not None and a.alias_info.is_write,
        )
        for a in overload._schema.arguments
    )


def has_registered_effect(target: Any) -> bool:
    """Whether torch has been told that a call has effects beyond its result."""
    if target in torch.fx.node._side_effectful_functions:
        return True
    if not isinstance(target, OpOverload):
        return False
    from torch._higher_order_ops import effects

    # 2.11 and 2.12 keep the lookup under another name on some builds; an absent lookup means no registry.
    lookup = getattr(effects, "_get_effect", None) or getattr(effects, "get_effect_key", None)
    if lookup is None:
        return False
    try:
        return lookup(target) is not None
    except TypeError:
        # get_effect_key also wants the arguments, which only matter for scripted objects.
        return lookup(target, (), {}) is not None


def tensor_metadata(value: torch.Tensor) -> Any:
    """The `tensor_meta` record of a tensor, as torch's own propagation writes it."""
    if type(value) is FakeTensor and is_constant_sized(value) and value.is_contiguous():
        # Most are so, and asking torch takes longer than all the rest of making a node.
        return TensorMetadata(
            value.shape, value.dtype, value.requires_grad, value.stride(), torch.contiguous_format, False, {}
        )
    return _extract_tensor_metadata(value)


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


def in_backward() -> bool:
    """Whether this thread is inside a backward pass, where activation checkpointing runs forward code again (2.11 on)."""
    return torch._C._current_graph_task_id() != -1


def traces_restored_attributes() -> bool:
    """Whether the compiler traces code that sets an attribute and sets it back inside a checkpointed region (2.13 on)."""
    return torch_version() >= (2, 13)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """`function` on every leaf of a nest of containers, in the form that the compiler traces (2.11 on)."""
    return pytree.tree_map(function, tree)


def strided_shard(dim: int, split_factor: int) -> Placement:
    """A dimension cut by an outer mesh dimension after `split_factor` inner ranks have cut it already (2.11 on)."""
    from torch.distributed.tensor.placement_types import _StridedShard

    return _StridedShard(dim, split_factor=split_factor)


def joined_mesh(outer: DeviceMesh, inner: DeviceMesh) -> DeviceMesh:
    """The mesh with the dimensions of both; they must be slices of one mesh (2.11 on)."""
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh._concatenate([outer, inner])


def operator_name(target: OpOverload) -> tuple[str, str, str]:
    """Namespace, name and overload of an operator."""
    namespace, _, name = target._schema.name.partition("::")
    return namespace, name, target._overloadname


# Operators that only exist after their module was loaded. A fixed list: what a graph text says never decides an import.
_OPERATOR_MODULES = {
    "symm_mem": "torch.distributed._symmetric_memory",
    "_dtensor": "torch.distributed.tensor",
    "bucketing": "torch._inductor.fx_passes.bucketing",
    "inductor": "torch._inductor.inductor_prims",
    "prims": "torch._inductor.inductor_prims",
    "rngprims": "torch._prims.rng_prims",
    "higher_order": "torch._higher_order_ops",
}


def _packet(namespace: str, name: str) -> OpOverloadPacket | None:
    for loaded in (False, True):
        if loaded:
            if namespace not in _OPERATOR_MODULES:
                return None
            importlib.import_module(_OPERATOR_MODULES[namespace])
        packet = getattr(getattr(torch.ops, namespace, None), name, None)
        if isinstance(packet, OpOverloadPacket):
            return packet
    return None


def find_operator(namespace: str, name: str, overload: str) -> OpOverload | None:
    """An operator from torch's registry, or None. Magic names and methods of the registry itself are never returned."""
    if any(part.startswith("__") for part in (namespace, overload)) or not namespace or not name:
        return None
    packet = _packet(namespace, name)
    found = getattr(packet, overload, None) if packet is not None and overload in packet.overloads() else None
    return found if isinstance(found, OpOverload) else None


def find_higher_order(name: str) -> HigherOrderOperator | None:
    """A higher-order operator from torch's registry, or None."""
    import torch._higher_order_ops

    if name == "control_deps" and name not in torch._ops._higher_order_ops:
        importlib.import_module("torch._inductor.fx_passes.control_dependencies")
    found = torch._ops._higher_order_ops.get(name)
    return found if isinstance(found, HigherOrderOperator) else None


def overload_names(namespace: str, name: str) -> tuple[str, ...]:
    """The overloads of an operator; empty when there is no such operator."""
    if not namespace or not name or namespace.startswith("__"):
        return ()
    packet = _packet(namespace, name)
    return () if packet is None else tuple(packet.overloads())


def all_operator_names() -> list[str]:
    """`namespace.name` of every registered operator (for the near names in error messages)."""
    names = {name.partition(".")[0].replace("::", ".") for name in torch._C._dispatch_get_all_op_names()}
    return sorted(names | {f"higher_order.{name}" for name in torch._ops._higher_order_ops})


def fake_tensor(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A fake tensor of a device (which need not exist here) around a meta tensor; faster than a factory."""
    return FakeTensor(mode, meta, device)


def is_constant_sized(value: FakeTensor) -> bool:
    """Whether no size or stride of a fake tensor is symbolic, and its value is not known either."""
    return not value._has_symbolic_sizes_strides and value.constant is None


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
    from torch.fx.experimental.symbolic_shapes import RuntimeAssert, ShapeGuard, free_unbacked_symbols
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


def real_object(value: Any) -> Any:
    """The object behind a tracing stand-in for a scripted or opaque object; anything else is itself."""
    if isinstance(value, FakeScriptObject):
        return object.__getattribute__(value, "real_obj")
    return value


def group_name(value: Any) -> str | None:
    """The name of a process group object; None for anything else."""
    groups = getattr(torch.distributed, "ProcessGroup", ())
    return str(value.group_name) if isinstance(value, groups) else None


def forget_names(graph: Graph) -> None:
    """Free the names of erased nodes, which a graph otherwise keeps taken (2.11 on). The graph must be empty."""
    from torch.fx.graph import _Namespace

    graph._graph_namespace = _Namespace()


# -- editing: names, order and erasure, so that a transaction can be taken back ---------------------------------------


class NameLog:
    """Remembers which names a graph gives out from now on, so that they can be given out again (2.11 on).

    The counters are overlaid, not copied: opening, keeping and dropping cost as much as there are new names.
    """

    def __init__(self, graph: Graph) -> None:
        self._names = graph._graph_namespace
        self._counters = self._names._base_count
        self._names._base_count = _Counters({}, self._counters)  # type: ignore[assignment]

    def keep(self) -> None:
        """Make the new names permanent."""
        self._counters.update(self._names._base_count.maps[0])  # type: ignore[attr-defined]
        self._names._base_count = self._counters

    def drop(self, made: Iterable[Node]) -> None:
        """Forget the new names, those of these nodes; the next node is named as if they had never been."""
        for node in made:
            self._names._obj_to_name.pop(node, None)
            self._names._used_names.discard(node.name)
        self._names._base_count = self._counters


class _Counters(ChainMap[str, int]):
    def __missing__(self, key: str) -> int:
        # The counters were a defaultdict in some versions.
        return 0


def place_of(node: Node) -> tuple[int, ...]:
    """Where the node stands: larger means later. Only moving the node itself changes it (2.11 on)."""
    return node._sort_key  # type: ignore[no-any-return]


def is_erased(node: Node) -> bool:
    """Whether the node has been taken out of its graph (2.11 on)."""
    return bool(node._erased)


def bring_back(node: Node, before: Node) -> None:
    """Undo `Graph.erase_node`, but for the arguments, which the caller sets afterwards (2.11 on)."""
    graph = node.graph
    node._erased = False
    before.prepend(node)
    graph._len += 1
    graph._find_nodes_lookup_table.insert(node)


def graph_size(graph: Graph) -> tuple[int, int]:
    """Nodes in the graph and names ever given: one of them changes whenever a node is made or erased (2.11 on)."""
    return graph._len, len(graph._graph_namespace._used_names)


# -- capture: fake process groups, tracing one step, the graphs of torch.compile ---------------------------------------


def fake_store() -> Any:
    """The store of a process group that only pretends to communicate; loading it registers that backend."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def forget_meshes() -> None:
    """Drop what DTensor remembers of past meshes: it compares meshes by layout, so a new world would get old groups."""
    from torch.distributed.tensor import debug

    for name in ("_clear_python_sharding_prop_cache", "_clear_fast_path_sharding_prop_cache"):
        # Not every version has both caches.
        getattr(debug, name, lambda: None)()


def process_group_ranks(name: str) -> tuple[int, ...]:
    """The global ranks of a registered process group; LookupError where no group has the name."""
    from torch.distributed import distributed_c10d

    resolve: Callable[[str], Any] = getattr(distributed_c10d, "_resolve_process_group")  # noqa: B009  not in the stubs
    try:
        group = resolve(name)
    except (RuntimeError, ValueError, KeyError) as error:
        raise LookupError(name) from error
    return tuple(torch.distributed.get_process_group_ranks(group))


def tree_flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a nest of containers and the structure around them."""
    leaves, structure = pytree.tree_flatten(tree)
    return leaves, structure


def tree_unflatten(leaves: Iterable[Any], structure: Any) -> Any:
    """The nest of containers again."""
    return pytree.tree_unflatten(leaves, structure)


def tree_paths(tree: Any) -> list[str]:
    """Where each leaf of a nest of containers lies, such as `0.tokens`, in the order of `tree_flatten`."""
    return [
        ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
        for path, _ in pytree.tree_flatten_with_path(tree)[0]
    ]


def dtensor_around(local: torch.Tensor, like: Any) -> torch.Tensor:
    """A leaf DTensor that lies on its mesh as `like` does; public `from_local` would add a view to the graph."""
    from torch.distributed.tensor import DTensor

    return DTensor(local, like._spec, requires_grad=False)


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a Python object around other tensors."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return bool(is_traceable_wrapper_subclass(tensor))


def local_part(tensor: Any) -> torch.Tensor:
    """The tensor that a DTensor holds on this rank."""
    local: torch.Tensor = tensor._local_tensor
    return local


def functional_trace(function: Callable[..., Any], args: list[Any], *, symbolic: bool) -> GraphModule:
    """Trace a function of fake tensors into a graph without in-place operators.

    `make_fx` with functionalization below autograd, as AOT autograd stacks them. The public `torch.func.functionalize`
    works above the dispatch of DTensor and cannot look inside one.
    """
    from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    functional = dispatch_functionalize(function, FunctionalTensorMode())
    tracer = make_fx(functional, tracing_mode="symbolic" if symbolic else "fake", record_stack_traces=True)
    with fx_traceback.preserve_node_meta():
        return tracer(*args)


def remember_forward_lines(loss: torch.Tensor) -> None:
    """Let the nodes of a backward that is traced next carry the sequence number of the forward node they belong to."""
    from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks

    if loss.grad_fn is not None:
        setup_stacktrace_preservation_hooks([loss.grad_fn])


@contextmanager
def as_if_compiling() -> Iterator[None]:
    """Let library code take the branches meant for graphs: optimizers then keep their step count a tensor."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def has_post_accumulate_hooks(parameter: torch.Tensor) -> bool:
    """Whether something runs after the parameter's gradient was accumulated, such as an optimizer in the backward."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def copy_tensor_hooks(source: torch.Tensor, target: torch.Tensor) -> None:
    """Register the hooks of one leaf on another that stands in for it."""
    for hook in (getattr(source, "_backward_hooks", None) or {}).values():
        target.register_hook(hook)
    for hook in (getattr(source, "_post_accumulate_grad_hooks", None) or {}).values():
        target.register_post_accumulate_grad_hook(hook)


class ReducerFacts(NamedTuple):
    """What a DistributedDataParallel module would do in its reducer."""

    group: Any
    parameters: tuple[torch.Tensor, ...]
    buffers: tuple[torch.Tensor, ...]
    """Copied from the first rank before each forward."""
    synchronises: bool
    """False inside `no_sync`."""
    hooked: bool
    """A communication hook replaces the all-reduce."""
    in_python: bool
    """The reducer is written in Python, so a compiler can see it."""


def reducer_facts(module: torch.nn.parallel.DistributedDataParallel) -> ReducerFacts:
    """How a DDP module reduces its gradients."""
    return ReducerFacts(
        group=module.process_group,
        parameters=tuple(p for p in module._module_parameters if p.requires_grad),
        buffers=tuple(module.modules_buffers) if module.will_sync_module_buffers() else (),
        synchronises=bool(module.require_backward_grad_sync),
        hooked=bool(module._comm_hooks),
        in_python=bool(module._use_python_reducer),
    )


@contextmanager
def without_reducer(modules: Iterable[torch.nn.parallel.DistributedDataParallel]) -> Iterator[None]:
    """Let DDP modules call what they hold and nothing else: a C++ reducer cannot be traced."""
    before = [(module, module._use_python_reducer) for module in modules]
    for module, _ in before:
        module._use_python_reducer = True
    try:
        yield
    finally:
        for module, value in before:
            module._use_python_reducer = value


def copy_dynamic_marks(source: torch.Tensor, target: torch.Tensor) -> None:
    """Give one tensor the marks that `mark_dynamic` and its siblings left on another."""
    for name, value in source.__dict__.items():
        if name.startswith("_dynamo_"):
            setattr(target, name, value)


def dynamic_dims(tensor: torch.Tensor) -> frozenset[int]:
    """The dimensions that `mark_dynamic` or `maybe_mark_dynamic` named."""
    marks = (getattr(tensor, f"_dynamo_{kind}_indices", ()) for kind in ("dynamic", "weak_dynamic"))
    return frozenset(dim for mark in marks for dim in mark)


GraphTaker = Callable[[GraphModule, bool], Callable[..., Any]]
"""Called with a graph and whether it is a backward; answers what runs in its place."""


def aot_backend(take: GraphTaker, take_inference: GraphTaker) -> Callable[..., Any]:
    """A `torch.compile` backend that hands out AOT autograd's graphs, partitioned and decomposed as for inductor."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    return aot_autograd(
        fw_compiler=lambda gm, _: take(gm, False),
        bw_compiler=lambda gm, _: take(gm, True),
        inference_compiler=lambda gm, _: take_inference(gm, False),
        decompositions=select_decomp_table,
        partition_fn=functools.partial(min_cut_rematerialization_partition, compiler="inductor"),
        keep_inference_input_mutations=True,
    )


def post_grad_backend(take: GraphTaker, take_inference: GraphTaker) -> Callable[..., Any]:
    """A `torch.compile` backend that hands out graphs as inductor's last custom pass sees them; nothing is lowered."""
    from torch._inductor import config
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.pattern_matcher import stable_topological_sort
    from torch._inductor.virtualized import V

    inductor: Any = importlib.import_module("torch._inductor.compile_fx")

    def inner(gm: GraphModule, examples: Any, **facts: Any) -> Callable[..., Any]:
        seen: list[GraphModule] = []

        def look(graph: Graph) -> None:
            stable_topological_sort(graph)
            seen.append(copy_graph(gm))

        inductor.view_to_reshape(gm)
        mode = inductor.fake_tensor_prop(gm, examples)
        inference = bool(facts.get("is_inference"))
        with V.set_fake_mode(mode), config.patch(post_grad_custom_post_pass=look):
            post_grad_passes(gm, inference)
        run = (take_inference if inference else take)(seen[0], bool(facts.get("is_backward")))
        return functorch_boxed(run)

    return lambda gm, examples: inductor.compile_fx(gm, examples, inner_compile=inner)


def functorch_boxed(run: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that takes its arguments as one list, which it may empty."""
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def copy_graph(gm: GraphModule) -> GraphModule:
    """A copy with its own nodes, their metadata shared; `copy.deepcopy` would copy fake tensors too."""
    graph = Graph()
    output: Any = graph.graph_copy(gm.graph, {}, return_output_node=True)
    if output is not None:
        result, old = output
        graph.output(result).meta.update(old.meta)
    return GraphModule(gm, graph, type(gm).__name__)


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """torch.compile without caches, without rewrites of communication, and blind to what was compiled before."""
    import torch._dynamo
    import torch._functorch.config

    inductor: Any = importlib.import_module("torch._inductor.config")
    off = {
        "_fuse_ddp_communication": False,
        "_micro_pipeline_tp": False,
        "reorder_for_compute_comm_overlap": False,
        "bucket_all_gathers_fx": "none",
        "bucket_reduce_scatters_fx": "none",
        "bucket_all_reduces_fx": "none",
        "aten_distributed_optimizations.enable_overlap_scheduling": False,
        # 2.14 on, and switched on there.
        "aten_distributed_optimizations.enable_simple_overlap": False,
        "post_grad_custom_pre_pass": None,
        "post_grad_custom_post_pass": None,
    }
    known = {name: value for name, value in off.items() if name in inductor._config}
    torch.compiler.reset()
    try:
        with (
            inductor.patch(known),
            torch._functorch.config.patch(enable_autograd_cache=False),
            torch._dynamo.config.patch(automatic_dynamic_shapes=False),
        ):
            yield
    finally:
        torch.compiler.reset()


def compiled_backward(compiler: Callable[..., Any]) -> AbstractContextManager[None]:
    """Hand whole backward passes to a compiler: compiled autograd with one of our own choosing."""
    from torch._dynamo import compiled_autograd

    return compiled_autograd._enable(compiler)


def data_dependent_errors() -> tuple[type[BaseException], ...]:
    """What tracing raises when Python asks for the value of a tensor that has none."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode


def graph_break_error() -> type[BaseException]:
    """What `fullgraph=True` raises."""
    from torch._dynamo.exc import Unsupported

    return Unsupported


def symbolic_math() -> dict[str, Callable[..., Any]]:
    """Functions on symbolic numbers that graphs call under private names."""
    names = ("acos", "asin", "atan", "cos", "cosh", "log2", "sin", "sinh", "sqrt", "tan", "tanh")
    return {f"torch._sym_{n}": getattr(torch, f"_sym_{n}") for n in names if hasattr(torch, f"_sym_{n}")}
