"""How each form of a collective is written in inductor's IR.

A lowering gets a `Call`: the row of `ir/ops.py` and the arguments by name, so that operators with arguments in another
order, or with one more in a newer torch, need no code of their own.

- *Functional with an in-place twin* (all-reduce, broadcast): the input is copied and the copy communicated in place.
  The copy is fused into what makes the input; where the input dies there, a pass has chosen the twin already.
- *In place*: the buffer itself, unless the backend could not take it as it lies.
- *Out of place*: a result of the operator's own. What is sent is held until the wait.
- *Out*: into a buffer that the caller gives. What is sent is held until the wait here too.
- *Wait*: an update of the result, which nobody reads before; none at all where a blocking form was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import V

from counterpoint._torch import OpOverload, formals
from counterpoint.inductor.lowering.state import keep_in_flight, state_of
from counterpoint.ir import ops
from counterpoint.ir.ops import Form, OpSpec
from counterpoint.ir.shared_memory import VOID


@dataclass(frozen=True)
class Call:
    """A call of a communicating operator, about to be lowered."""

    spec: OpSpec
    overload: OpOverload
    values: Mapping[str, Any]
    """The arguments by name; those that were left out and have a default are missing."""

    @staticmethod
    def of(spec: OpSpec, overload: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """The call with these arguments, whichever way they were written."""
        names = [formal.name for formal in formals(overload)]
        return Call(spec, overload, dict(zip(names, args, strict=False)) | dict(kwargs))

    def arguments(self, **changed: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments for the operator, some replaced: by keyword from the first that is missing on."""
        values = {**self.values, **changed}
        positional: list[Any] = []
        keyword: dict[str, Any] = {}
        in_row = True
        for formal in formals(self.overload):
            in_row = in_row and formal.name in values and not formal.kwarg_only
            if in_row:
                positional.append(values[formal.name])
            elif formal.name in values:
                keyword[formal.name] = values[formal.name]
        return tuple(positional), keyword

    def tensors(self, names: Iterable[str]) -> tuple[Any, ...]:
        """The tensors of these arguments, lists flattened."""
        values = (self.values[name] for name in names)
        return tuple(one for value in values for one in (value if isinstance(value, (list, tuple)) else [value]))

    def prepared(self, prepare: Callable[[Any], Any]) -> Call:
        """The call with every payload tensor replaced by what `prepare` makes of it."""
        values = dict(self.values)
        for name in self.spec.payload:
            held = values[name]
            values[name] = [prepare(one) for one in held] if isinstance(held, (list, tuple)) else prepare(held)
        return Call(self.spec, self.overload, values)

    def as_twin(self, twin: OpSpec) -> Call | None:
        """The same call of another form; None where an argument that was given is unknown to it."""
        overload = ops.overload_of(twin)
        known = {formal.name for formal in formals(overload)}
        if any(name not in known and value is not None for name, value in self.values.items()):
            return None
        return Call(twin, overload, {name: value for name, value in self.values.items() if name in known})


Lower = Callable[[Call], Any]


def lower_functional(call: Call) -> Any:
    """A collective with a result of its own."""
    twin = ops.form_of(call.spec, form=Form.IN_PLACE, coalesced=call.spec.coalesced)
    in_place = call.as_twin(twin) if twin is not None else None
    if in_place is not None:
        return lower_in_place(in_place.prepared(lowering.clone))
    call = call.prepared(contiguous)
    args, kwargs = call.arguments()
    made: Any = ir._CollectiveKernel.create_out_of_place(call.overload, *args, **kwargs)
    result = [ir.TensorBox.create(one) for one in made] if isinstance(made, list) else ir.TensorBox.create(made)
    _started(call, result)
    return result


def lower_in_place(call: Call) -> Any:
    """A collective over its input's buffer."""
    call = call.prepared(contiguous)
    kind = ir._AllReduce_Kernel if _is_plain_all_reduce(call.spec) else ir._CollectiveKernel
    args, kwargs = call.arguments()
    kind.create_inplace(call.overload, *args, **kwargs)
    return call.values[call.spec.payload[0]]


def lower_without_result(call: Call) -> Any:
    """One of our operators over its input's buffer, by its form that returns nothing."""
    call = call.prepared(contiguous)
    namespace, name = VOID[call.spec.name].split("::")
    args, kwargs = call.arguments()
    ir.FallbackKernel.create(getattr(getattr(torch.ops, namespace), name).default, *args, **kwargs)
    return call.values[call.spec.payload[0]]


def lower_as_called(call: Call) -> Any:
    """An operator that reads its inputs where they lie and makes a result, as inductor takes any operator to do."""
    args, kwargs = call.arguments()
    # Strides of results follow from those of inputs, which therefore stay as they were traced. Torch pairs arguments by
    # place and keyword, so the traced ones are written the same way.
    node = V.graph.current_node
    traced_args, traced_kwargs = Call.of(call.spec, call.overload, node.args, node.kwargs).arguments()
    traced = SimpleNamespace(args=traced_args, kwargs=traced_kwargs)
    args, kwargs = lowering.constrain_to_fx_strides(traced, *args, **kwargs)
    return lowering.fallback_handler(call.overload, add_to_fallback_set=False)(*args, **kwargs)


def lower_out(call: Call) -> Any:
    """A collective into a buffer that the caller gives."""
    call = call.prepared(contiguous)
    args, kwargs = call.arguments()
    ir._CollectiveKernel.create_inplace(call.overload, *args, **kwargs)
    (out,) = call.spec.written
    _started(call, call.values[out])
    return call.values[out]


def lower_p2p_batch(call: Call) -> Any:
    """Sends and receives together. A receive's result is its tensor; a send's is something to wait for."""
    call = call.prepared(contiguous)
    args, kwargs = call.arguments()
    made: Any = ir._CollectiveKernel.create_out_of_place(call.overload, *args, **kwargs)
    batch = made[0].inputs[0]
    results = []
    for what, given, result in zip(call.values["op_list"], call.tensors(call.spec.payload), made, strict=True):
        if what == "irecv":
            V.graph.mark_buffer_mutated(given.get_name())
            batch.mutation_outputs.append(ir.MutationOutput(ir.NoneLayout(device=given.get_device()), given, batch))
            batch.alias_names.append(given.get_name())
        results.append(given if what == "irecv" else ir.TensorBox.create(result))
    _started(call, results)
    return results


def lower_wait(call: Call) -> Any:
    """The end of a collective."""
    (name,) = call.spec.payload
    waited: Any = call.values[name]
    results = waited if isinstance(waited, (list, tuple)) else [waited]
    state = state_of(V.graph)
    if all(should_skip(result) for result in results):
        return waited
    ir._WaitKernel.create_wait(call.overload, waited)
    held = {sent.get_name(): sent for one in results for sent in state.flights.get(one.get_name(), ())}
    wait: Any = V.graph.operations[-1]
    if held:
        # Inductor finds what is sent by looking behind the waited buffer, and so misses it where that is the caller's.
        wait.get_volatile_reads = lambda: list(held.values())
    return waited


def should_skip(result: ir.IRNode) -> bool:
    """Whether the result is there already."""
    return result.get_name() in state_of(V.graph).skipped


def contiguous(value: Any) -> Any:
    """The tensor as backends take it; a copy only where it lies otherwise."""
    return ir.ExternKernel.require_contiguous(value)


def _is_plain_all_reduce(spec: OpSpec) -> bool:
    return spec.name == "_c10d_functional::all_reduce_"


def _started(call: Call, results: Any) -> None:
    many = results if isinstance(results, (list, tuple)) else [results]
    if call.spec.waits:
        keep_in_flight(V.graph, many, call.tensors(call.spec.payload))


LOWER: Mapping[Form, Lower] = {
    Form.FUNCTIONAL: lower_functional,
    Form.IN_PLACE: lower_in_place,
    Form.OUT: lower_out,
}
"""What lowers a form, where the kind of collective does not say otherwise."""
