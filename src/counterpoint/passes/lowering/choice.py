"""Which form every collective gets: a pure function of call, capabilities and costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from counterpoint.cost.capabilities import NOTHING, Capabilities
from counterpoint.cost.model import CostModel
from counterpoint.cost.ways import MOVED, Call, Way, Ways, ways
from counterpoint.ir.ops import Kind
from counterpoint.ir.reason import Refusal
from counterpoint.passes.lowering.calls import EXTREMES, Candidate


@dataclass(frozen=True)
class Choice:
    """The way that was chosen, and what it gains."""

    way: Way
    automatic: bool = False
    """One-shot or two-shot, by the size that it has when it runs."""
    before_us: float | None = None
    after_us: float | None = None


def choose(candidate: Candidate, found: Capabilities, model: CostModel, beside_us: float) -> Choice | Refusal:
    """The quickest form, or why the collective stays with the library."""
    call = replace(candidate.call, beside_us=beside_us)
    if candidate.sized:
        options = ways(call, found, model)
        if options.best is Way.LIBRARY:
            return _with_library(candidate, found, options)
        return Choice(options.best, False, options.library_us, options.waits_us[options.best])
    return _unsized(candidate, call, found, model)


def _unsized(candidate: Candidate, call: Call, found: Capabilities, model: CostModel) -> Choice | Refusal:
    """What is best for a small tensor and for a large one is best for one of unknown size.

    Ranks may know different hints for one size, so none is looked at.
    """
    both = [ways(replace(call, nbytes=(size,) * len(call.nbytes)), found, model) for size in EXTREMES]
    best = [options.best for options in both]
    if Way.LIBRARY in best:
        options = both[best.index(Way.LIBRARY)]
        known = len(options.waits_us) == 1
        return _with_library(candidate, found, options) if known else _unknown(candidate, both)
    if len(set(best)) == 1 and best[0] in (Way.SHARED, Way.HIERARCHICAL, Way.COPY_ENGINE):
        return Choice(best[0])
    # Kernels on devices cannot take every size; those on hosts can, and choose when they run.
    if call.device_type == "cpu" and set(best) <= {Way.ONE_SHOT, Way.TWO_SHOT}:
        return Choice(Way.ONE_SHOT, automatic=True)
    return _unknown(candidate, both)


def _unknown(candidate: Candidate, both: Iterable[Ways]) -> Refusal:
    said = " and ".join(f"{options.best.value} for {size} B" for options, size in zip(both, EXTREMES, strict=True))
    return Refusal("unknown-size", candidate.start.name, f"{said} would be best")


def _with_library(candidate: Candidate, found: Capabilities, options: Ways) -> Refusal:
    name = candidate.start.name
    if candidate.call.kind not in MOVED:
        return Refusal("no-other-form", name, candidate.call.kind.value)
    if len(options.waits_us) > 1:
        times = (f"{way.value} {us:.0f} us" for way, us in options.waits_us.items())
        return Refusal("library-best", name, ", ".join(times))
    if found == NOTHING:
        return Refusal("not-probed", name, f"group {candidate.group}")
    by_reason: dict[str, list[str]] = {}
    for way, why in options.obstacles.items():
        by_reason.setdefault(why, []).append(way.value)
    return Refusal("other-form-lacking", name, "; ".join(f"{', '.join(w)}: {why}" for why, w in by_reason.items()))


OPERATORS: Mapping[tuple[Way, Kind], str] = {
    (Way.ONE_SHOT, Kind.ALL_REDUCE): "counterpoint::shm_one_shot_all_reduce",
    (Way.TWO_SHOT, Kind.ALL_REDUCE): "counterpoint::shm_two_shot_all_reduce",
    (Way.MULTICAST, Kind.ALL_REDUCE): "counterpoint::shm_multicast_all_reduce",
    (Way.SHARED, Kind.ALL_GATHER): "counterpoint::shm_all_gather",
    (Way.SHARED, Kind.REDUCE_SCATTER): "counterpoint::shm_reduce_scatter",
    (Way.COPY_ENGINE, Kind.ALL_GATHER): "symm_mem::_low_contention_all_gather",
    (Way.COPY_ENGINE, Kind.REDUCE_SCATTER): "symm_mem::_low_contention_reduce_scatter",
    (Way.HIERARCHICAL, Kind.ALL_REDUCE): "counterpoint::hierarchical_all_reduce",
    (Way.HIERARCHICAL, Kind.ALL_GATHER): "counterpoint::hierarchical_all_gather",
    (Way.HIERARCHICAL, Kind.REDUCE_SCATTER): "counterpoint::hierarchical_reduce_scatter",
}
"""The functional operator of each way."""
AUTOMATIC = "counterpoint::shm_all_reduce"


def operator_of(choice: Choice, kind: Kind) -> str:
    """The functional operator that a choice means."""
    return AUTOMATIC if choice.automatic else OPERATORS[choice.way, kind]
