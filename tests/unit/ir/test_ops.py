"""The table of collectives agrees with the schemas of the installed torch, and reads calls in every form."""

import pytest
import torch

from counterpoint._torch import OpOverload, formals
from counterpoint.errors import GraphError
from counterpoint.ir import ops, pipelined, shared_memory  # noqa: F401  the last two register operators
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.ops import Form, Kind

C10D = torch.ops._c10d_functional
REQUIRED_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")
# Signals between streams, and what sets buffers up: barriers, since what they order is not in their arguments.
BARRIERS = {
    "symm_mem::_async_input_mm",
    "symm_mem::_barrier",
    "symm_mem::_rendezvous",
    "symm_mem::memset32_",
    "symm_mem::nccl_put_signal",
    "symm_mem::nccl_put_with_signal",
    "symm_mem::nccl_wait_for_signal",
    "symm_mem::nccl_wait_signal",
    "symm_mem::nvshmem_put_with_signal",
    "symm_mem::nvshmem_wait_for_signal",
    "symm_mem::stream_write_value32_",
}


@pytest.mark.parametrize("spec", list(ops.TABLE.values()), ids=list(ops.TABLE))
def test_every_named_argument_exists_in_the_schema(spec: ops.OpSpec) -> None:
    try:
        overload = ops.overload_of(spec)
    except GraphError:
        pytest.skip(f"torch {torch.__version__} has no {spec.name}")
    known = {formal.name: formal for formal in formals(overload)}
    named = {*spec.payload, *spec.written, spec.group, spec.group_size, spec.reduce_op, spec.root, spec.peer, spec.tag}
    assert named - {None} <= set(known)
    assert {name for name, formal in known.items() if formal.written} <= set(spec.written)


def test_every_communicating_operator_of_torch_is_in_the_table_or_known_as_a_barrier() -> None:
    ops.register_operators()
    names = {schema.name for schema in torch._C._jit_get_all_schemas()}
    found = {name for name in names if name.split("::")[0] in REQUIRED_NAMESPACES and "::_wrap" not in name}
    assert len(found) > 50
    assert found - set(ops.TABLE) - ops.GROUP_GETTERS <= BARRIERS
    assert not BARRIERS & set(ops.TABLE)


def test_an_operator_outside_the_table_is_no_collective() -> None:
    assert ops.spec_of(torch.ops.aten.add.Tensor) is None
    assert ops.spec_of(torch.add) is None
    assert ops.spec_of("all_reduce") is None


def test_forms_of_one_family_are_found() -> None:
    all_reduce = ops.TABLE["_c10d_functional::all_reduce"]
    names = {
        (form, coalesced): getattr(ops.form_of(all_reduce, form=form, coalesced=coalesced), "name", None)
        for form in (Form.FUNCTIONAL, Form.IN_PLACE, Form.OUT)
        for coalesced in (False, True)
    }
    assert names[Form.FUNCTIONAL, False] == "_c10d_functional::all_reduce"
    assert names[Form.IN_PLACE, False] == "_c10d_functional::all_reduce_"
    assert names[Form.IN_PLACE, True] == "_c10d_functional::all_reduce_coalesced_"
    assert names[Form.OUT, False] is None
    gather = ops.TABLE["_c10d_functional::all_gather_into_tensor"]
    assert ops.form_of(gather, form=Form.OUT) is ops.TABLE["_c10d_functional::all_gather_into_tensor_out"]


def test_arguments_are_found_by_name_however_they_are_written() -> None:
    builder = GraphBuilder({"dp": range(2)})
    x = builder.input("x", (4,))
    positional = builder.call(C10D.all_reduce.default, x, "sum", "dp")
    keywords = builder.call(C10D.all_reduce.default, x, group_name="dp", reduce_op="max")
    assert [ops.argument(n, "reduce_op") for n in (positional, keywords)] == ["sum", "max"]
    assert [ops.argument(n, "group_name") for n in (positional, keywords)] == ["dp", "dp"]


def test_defaults_are_given_for_absent_arguments() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (4, 4))
    node = builder.graph.call_function(
        ops.overload_of(ops.TABLE["symm_mem::fused_all_gather_matmul"]), (x, [x], 0, "0")
    )
    assert ops.argument(node, "return_A") is True


def test_a_missing_argument_is_a_graph_error_that_names_it() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (4,))
    node = builder.graph.call_function(C10D.all_reduce.default, (x,))
    with pytest.raises(GraphError, match="reduce_op"):
        ops.argument(node, "reduce_op")
    with pytest.raises(GraphError, match="no argument 'colour'"):
        ops.argument(node, "colour")
    with pytest.raises(GraphError, match="not a torch operator"):
        ops.argument(x, "input")


def test_an_operator_that_torch_lacks_is_a_graph_error() -> None:
    with pytest.raises(GraphError, match="no operator _c10d_functional::all_dance"):
        ops.overload_of(ops.OpSpec(name="_c10d_functional::all_dance", kind=Kind.ALL_REDUCE))


def test_kinds_of_nodes() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (4,))
    start = builder.call(C10D.all_reduce.default, x, "sum", "0")
    wait = builder.wait(start)
    assert [ops.is_collective(n) for n in (x, start, wait)] == [False, True, False]
    assert [ops.is_wait(n) for n in (x, start, wait)] == [False, False, True]
    assert isinstance(start.target, OpOverload)
