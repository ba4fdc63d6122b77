"""What `plan` finds out: the scenarios at one size, what each change would bring, and sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from counterpoint.capture.graph import CapturedGraph
from counterpoint.cli.plan.outcomes import Knob, Outcome, Scenario, knobs, outcome, scenarios, with_link
from counterpoint.cli.plan.sweep import Sweep, Swept, swept
from counterpoint.cost.model import CostModel
from counterpoint.cost.presets import topology as topology_of
from counterpoint.cost.topology import Topology
from counterpoint.options import CompileOptions
from counterpoint.passes.ledger import SCHEMA

Capture = Callable[[int | None], Sequence[CapturedGraph]]
"""The graphs at a world size; None for the one that was asked for."""
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Payoff:
    """What one change brings for the best scenario."""

    label: str
    step_us: float
    gain: float
    """Part of the step that it saves; negative where it costs."""

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"label": self.label, "step_us": self.step_us, "gain": self.gain}


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything about one target."""

    target: str
    world_size: int
    topology: Topology
    outcomes: tuple[Outcome, ...]
    payoffs: tuple[Payoff, ...]
    sweeps: tuple[Swept, ...] = field(default=())

    @property
    def best(self) -> Outcome:
        """The scenario with the shortest step; of equals the one with the fewest passes."""
        return min(self.outcomes, key=lambda found: (found.step_us, len(found.passes)))

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "world_size": self.world_size,
            "topology": self.topology.name,
            "scenarios": [found.to_data() for found in self.outcomes],
            "best": self.best.label,
            "knobs": [payoff.to_data() for payoff in self.payoffs],
            "sweeps": [sweep.to_data() for sweep in self.sweeps],
        }


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Predicts for one target and one set of options."""

    target: str
    options: CompileOptions
    """With a topology."""
    capture: Capture
    say: Say

    def study(self, sweeps: Sequence[Sweep]) -> Study:
        """Do it all."""
        graphs = self.capture(None)
        topology = topology_of(str(self.options.topology))
        self.say("simulating")
        outcomes = self._outcomes(graphs, topology)
        best = min(range(len(outcomes)), key=lambda number: outcomes[number].step_us)
        payoffs = self._payoffs(graphs, topology, scenarios(self.options)[best], outcomes[best])
        return Study(
            target=self.target,
            world_size=graphs[0].world_size,
            topology=topology,
            outcomes=outcomes,
            payoffs=payoffs,
            sweeps=tuple(self._swept(sweep, graphs, topology) for sweep in sweeps),
        )

    def _outcomes(
        self, graphs: Sequence[CapturedGraph], topology: Topology, bucket_mb: float | None = None
    ) -> tuple[Outcome, ...]:
        return tuple(self._one(scenario, graphs, topology) for scenario in scenarios(self.options, bucket_mb))

    def _one(self, scenario: Scenario, graphs: Sequence[CapturedGraph], topology: Topology) -> Outcome:
        model = replace(CostModel.of(self.options), topology=topology)
        return outcome(scenario, graphs, self.options, model)

    def _payoffs(
        self, graphs: Sequence[CapturedGraph], topology: Topology, best: Scenario, now: Outcome
    ) -> tuple[Payoff, ...]:
        found = []
        for knob in knobs(topology):
            self.say(f"trying {knob.label}")
            step_us = self._turned(knob, graphs, topology, best).step_us
            gain = 1 - step_us / now.step_us if now.step_us > 0 else 0.0
            found.append(Payoff(label=knob.label, step_us=step_us, gain=gain))
        return tuple(sorted(found, key=lambda payoff: payoff.step_us))

    def _turned(self, knob: Knob, graphs: Sequence[CapturedGraph], topology: Topology, best: Scenario) -> Outcome:
        if knob.bucket_mb is not None:
            _, only_bucketing, *_ = scenarios(self.options, knob.bucket_mb)
            return self._one(only_bucketing, graphs, topology)
        return self._one(best, graphs, knob.change(topology) if knob.change is not None else topology)

    def _swept(self, sweep: Sweep, graphs: Sequence[CapturedGraph], topology: Topology) -> Swept:
        def at(value: float) -> tuple[Outcome, ...]:
            self.say(f"sweeping {sweep.knob}: {value:g}")
            if sweep.knob == "world-size":
                return self._outcomes(self.capture(int(value)), topology)
            if sweep.knob == "link":
                return self._outcomes(graphs, with_link(topology, value))
            return self._outcomes(graphs, topology, bucket_mb=value)

        return swept(sweep, at)
