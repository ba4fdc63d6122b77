"""Which collectives are pipelined with which matmuls: the plan of a graph, as data. Nothing here changes a graph.

Every matmul belongs to one plan. Gathers come first, since several matmuls may share one; where one of these also runs
into a reduction and the gather has others left, the reduction gets it, so that both are pipelined.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field, replace

from torch.fx import Node

from counterpoint.ir import ops
from counterpoint.ir.ops import Kind
from counterpoint.ir.reason import Refusal
from counterpoint.ir.view import GraphView
from counterpoint.passes.micro_pipeline.exchanges import ExchangePlan, read_exchange
from counterpoint.passes.micro_pipeline.gather_uses import Found, Use, find_uses, shared_forms
from counterpoint.passes.micro_pipeline.gathers import Gather, axes_behind, read_gather
from counterpoint.passes.micro_pipeline.products import is_matmul
from counterpoint.passes.micro_pipeline.rewrite import GatherPlan, Plan, ScatterPlan
from counterpoint.passes.micro_pipeline.scatters import Scatter, read_scatter

REDUCTIONS = (Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)


@dataclass
class Planned:
    """The plans of a graph, in graph order, and why the other collectives have none."""

    plans: list[Plan] = field(default_factory=list)
    refused: dict[Node, Refusal] = field(default_factory=dict)


def plan_graph(view: GraphView, among: Container[Node] | None = None) -> Planned:
    """Everything that could be pipelined, whether or not it pays; of these starts, where some are named."""
    planned = Planned()
    starts = view.starts if among is None else [start for start in view.starts if start in among]
    gathers, scatters = _read(starts, planned)
    found = find_uses(gathers, view)
    wanted = {product.node for scatter in scatters for product in scatter.products}
    taken: dict[Node, Node] = {}
    scales = {use.scale.gather.start for item in found for use in item.uses if use.scale is not None}
    for item in found:
        _plan_gather(item, wanted, taken, scales, planned)
    for scatter in scatters:
        _plan_scatter(scatter, taken, planned)
    for start in _exchanges(starts):
        read = read_exchange(start, view, taken)
        if isinstance(read, Refusal):
            planned.refused[start] = read
        else:
            taken.update((product.node, start) for product in read.products)
            planned.plans.append(read)
    done = {start for plan in planned.plans for start in plan.starts}
    planned.refused = {start: why for start, why in planned.refused.items() if start not in done}
    planned.plans.sort(key=lambda plan: plan.starts[0])
    return planned


def _read(starts: Iterable[Node], planned: Planned) -> tuple[list[Gather], list[Scatter]]:
    gathers, scatters = list[Gather](), list[Scatter]()
    for start in starts:
        spec = ops.spec_of(start.target)
        if spec is None or spec.kind not in (Kind.ALL_GATHER, *REDUCTIONS):
            continue
        read = read_gather(start) if spec.kind is Kind.ALL_GATHER else read_scatter(start)
        if isinstance(read, Refusal):
            planned.refused[start] = read
        elif isinstance(read, Gather):
            gathers.append(read)
        else:
            scatters.append(read)
    return gathers, scatters


def _exchanges(starts: Iterable[Node]) -> Iterator[Node]:
    return (s for s in starts if (spec := ops.spec_of(s.target)) is not None and spec.kind is Kind.ALL_TO_ALL)


def _plan_gather(found: Found, wanted: set[Node], taken: dict[Node, Node], scales: set[Node], planned: Planned) -> None:
    start = found.gather.start
    free = [use for use in found.uses if use.product.node not in taken]
    uses = next(shared_forms(free), ())
    kept = tuple(use for use in uses if use.product.node not in wanted)
    uses = kept or uses
    if uses:
        taken.update((use.product.node, start) for use in uses)
        planned.plans.append(GatherPlan(found.gather, uses, 1))
    elif start not in scales:
        planned.refused[start] = _why_no_use(found, taken)


def _why_no_use(found: Found, taken: dict[Node, Node]) -> Refusal:
    if found.uses:
        matmul = found.uses[0].product.node
        return Refusal("matmul-taken", matmul.name, f"pipelined with {taken[matmul].name}")
    if found.refusals:
        return found.refusals[0]
    return _nearest(found.gather)


def _nearest(gather: Gather) -> Refusal:
    """What stands between the gathered tensor and a matmul."""
    users = list(_first_users(gather))
    for user in users:
        behind = next((reader for reader in user.users if is_matmul(reader)), None)
        if behind is not None:
            return Refusal("not-elementwise", user.name, f"between {gather.result.name} and {behind.name}")
    names = ", ".join(str(user.target if user.op == "call_function" else user.op) for user in users[:3])
    return Refusal("no-matmul", gather.result.name, f"used by {names or 'nothing'}")


def _first_users(gather: Gather) -> Iterator[Node]:
    """What uses the gathered tensor or a view of it, and is no view."""
    seen = {node for node, _, _ in axes_behind(gather)}
    for node in sorted(seen):
        yield from (user for user in node.users if user not in seen)


def _plan_scatter(scatter: Scatter, taken: dict[Node, Node], planned: Planned) -> None:
    for product in scatter.products:
        other = taken.get(product.node)
        if other is not None:
            planned.refused[scatter.start] = Refusal("matmul-taken", product.node.name, f"pipelined with {other.name}")
            return
    taken.update((product.node, scatter.start) for product in scatter.products)
    planned.plans.append(ScatterPlan(scatter, 1))


def with_chunks(plan: Plan, chunks: int) -> Plan:
    """The plan with another number of chunks."""
    return replace(plan, chunks=chunks)


def partner_of(plan: Plan) -> str:
    """The matmuls of a plan, by name, for the ledger."""
    nodes = _matmuls(plan)
    return ", ".join(node.name for node in nodes)


def _matmuls(plan: Plan) -> list[Node]:
    if isinstance(plan, ExchangePlan):
        return [product.node for product in plan.products]
    if isinstance(plan, GatherPlan):
        uses: tuple[Use, ...] = plan.uses
        return [use.product.node for use in uses]
    return [product.node for product in plan.scatter.products]
