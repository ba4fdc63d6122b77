"""The pass that gives every collective the best form there is for it. See `counterpoint.cost.ways` for the forms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

from counterpoint.cost.capabilities import Capabilities
from counterpoint.cost.described import described_capabilities
from counterpoint.cost.model import CostModel
from counterpoint.cost.table import LinkTable
from counterpoint.cost.ways import Way
from counterpoint.ir.reason import Refusal
from counterpoint.options import option
from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.book import origins_of
from counterpoint.passes.contract import Contract
from counterpoint.passes.lowering.calls import Beside, Candidate, read_candidate, refuse_rounding
from counterpoint.passes.lowering.choice import Choice, choose
from counterpoint.passes.lowering.rewrite import Lowered, carry_out, planned, planned_in_place


class Devices(Enum):
    """Whose collectives are lowered."""

    ALL = "all"
    """Those of tensors on any device."""
    CPU = "cpu"
    """Those of tensors in the memory of a host."""


@dataclass(frozen=True, kw_only=True)
class LowerCollectives(Pass):
    """Gives every collective the best form there is for it.

    Does: an all-reduce becomes one-shot or two-shot in memory that its ranks share, or goes through the switch where
    that can add up; a gather or a scatter goes through shared memory or is carried by copy engines beside compute; on
    several hosts of several ranks each it is done inside the hosts, across them and inside again. What dies with its
    collective holds the result. Coalesced collectives are taken apart where that is quicker.

    Fires when: all ranks of the group have found out that the form works there, the kernels have the reduction and the
    element type, and what the program would wait is estimated to be less than for the library, compute between start
    and wait counted in. Without code generation the library's collectives are also done in place. Where no ranks have
    found out anything and no cluster is described, as in a world that only pretends, nothing is done or said.

    Before and after:

        s = all_reduce(x, "sum", "tp"); y = wait(s)
        y = shm_one_shot_all_reduce(x, "sum", "tp")

    Never: decides by a rank, a clock or the hint of an unknown size, writes into a tensor that anybody looks at later,
    or changes where a result stands in memory. Sums may be added in another order than the library's; `bitwise=True`
    forbids that.
    """

    name: ClassVar[str] = "lower-collectives"
    contract: ClassVar[Contract] = Contract(provides=frozenset({"lowered-collectives"}))

    in_place: bool = option(True, help="let results lie in the memory of inputs that die, also for the library's forms")

    devices: Devices = option(Devices.ALL, help="lower the collectives of tensors on all devices, or on the CPU only")

    def covers(self, device_type: str) -> bool:
        """Whether collectives of tensors on such a device are lowered at all."""
        return self.devices is Devices.ALL or device_type == self.devices.value

    def run(self, context: PassContext) -> None:
        """Choose for all, then rewrite one by one."""
        if self._knows_nothing(context):
            return
        links = context.topology if isinstance(context.topology, LinkTable) else None
        model = context.cost_model or CostModel.of(context.options, links)
        view = context.editor.view()
        beside, plans = Beside(view, model), list[Lowered]()
        for start in view.starts:
            candidate = read_candidate(context, start)
            if isinstance(candidate, Refusal):
                context.ledger.left_alone(start, candidate)
                continue
            candidate = _where_it_runs(context, candidate, model)
            if not self.covers(candidate.call.device_type):
                context.ledger.left_alone(start, Refusal("other-device", start.name, candidate.call.device_type))
                continue
            choice = self._choose(context, candidate, model, beside)
            plan = choice if isinstance(choice, Refusal) else planned(view, candidate, choice)
            if isinstance(plan, Refusal) and self.in_place and not model.fuses:
                # Inductor does this by itself, behind our passes.
                plan = planned_in_place(view, candidate) or plan
            if isinstance(plan, Refusal):
                context.ledger.left_alone(start, plan)
            else:
                plans.append(plan)
        for plan in plans:
            _carry_out(context, plan)

    def _knows_nothing(self, context: PassContext) -> bool:
        """Whether there is nothing to choose by: no ranks that have found out anything, and no cluster described."""
        if self.in_place and context.cost_model is not None and not context.cost_model.fuses:
            return False
        if context.capabilities is not None:
            return not context.capabilities.found
        return context.cost_model is None or context.cost_model.topology is None

    def _choose(self, context: PassContext, candidate: Candidate, model: CostModel, beside: Beside) -> Choice | Refusal:
        found, beside_us = _capabilities(context, candidate, model), beside.us(candidate)
        choice = choose(candidate, found, model, beside_us)
        if isinstance(choice, Choice):
            refusal = refuse_rounding(context, candidate.call, candidate.start)
            if refusal is None:
                if choice.way is Way.COPY_ENGINE:
                    beside.take(candidate, beside_us)
                return choice
            choice = refusal
        beside.take(candidate, beside_us)
        return choice


def _where_it_runs(context: PassContext, candidate: Candidate, model: CostModel) -> Candidate:
    """Who describes a cluster means it, also where the graph was captured on another device."""
    if context.capabilities is not None or model.topology is None:
        return candidate
    return replace(candidate, call=replace(candidate.call, device_type=model.topology.device_type))


def _capabilities(context: PassContext, candidate: Candidate, model: CostModel) -> Capabilities:
    """What the ranks have found out; what the topology describes where there are no ranks to ask."""
    if context.capabilities is not None:
        return context.capabilities.of(candidate.group, candidate.call.device_type)
    return described_capabilities(model.topology, candidate.call.ranks)


def _carry_out(context: PassContext, plan: Lowered) -> None:
    # Asked for before the start is gone.
    origins = origins_of(plan.candidate.start)
    refusal = carry_out(context.editor, plan)
    if refusal is not None:
        context.ledger.left_alone(origins, refusal)
        return
    choice = plan.choice or Choice(Way.LIBRARY)
    context.ledger.lowered(origins, plan.text, before_us=choice.before_us, after_us=choice.after_us)
