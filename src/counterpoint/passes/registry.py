"""Which passes exist: a table of names and places, read lazily, and what users add to it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from types import MappingProxyType

from counterpoint.errors import PassError
from counterpoint.options import near_names
from counterpoint.passes.base import P, Pass

LOGGER = logging.getLogger("counterpoint.passes")
ENTRY_POINTS = "counterpoint.passes"
"""Group of entry points through which other distributions offer passes, `name = "module:Class"`."""

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "bucket-all-gather": "counterpoint.passes.bucketing:BucketAllGather",
        "bucket-all-reduce": "counterpoint.passes.bucketing:BucketAllReduce",
        "bucket-all-to-all": "counterpoint.passes.bucketing:BucketAllToAll",
        "bucket-reduce-scatter": "counterpoint.passes.bucketing:BucketReduceScatter",
        "dedup-collectives": "counterpoint.passes.dedup:DedupCollectives",
        "fuse-ddp": "counterpoint.passes.ddp_fusion:FuseDdp",
        "lower-collectives": "counterpoint.passes.comm_lowering:LowerCollectives",
        "micro-pipeline-tp": "counterpoint.passes.micro_pipeline_tp:MicroPipelineTp",
        "print-graph": "counterpoint.passes.print_graph:PrintGraph",
        "schedule-overlap": "counterpoint.passes.overlap:ScheduleOverlap",
        "schedule-waits": "counterpoint.passes.schedule_waits:ScheduleWaits",
        "verify-graph": "counterpoint.passes.verify_graph:VerifyGraph",
    }
)
"""Our passes, name -> "module:Class"."""


class Registry:
    """Passes by name: ours, those of entry points, those registered in this process. Loaded when asked for."""

    def __init__(self, built_in: Mapping[str, str] = BUILT_IN) -> None:
        self._places = dict(built_in)
        self._registered: dict[str, type[Pass]] = {}

    def register(self, cls: P) -> P:
        """Add a pass of one's own; usable as a decorator, above `@dataclass`. A name cannot be taken twice."""
        taken = self._registered.get(cls.name)
        same = taken is not None and (taken.__module__, taken.__qualname__) == (cls.__module__, cls.__qualname__)
        if cls.name in self._places or (taken is not None and not same):
            raise PassError(
                f"the name {cls.name!r} is taken by another pass",
                where=f"{cls.__module__}.{cls.__qualname__}",
                next_step="give the pass another name",
            )
        self._registered[cls.name] = cls
        return cls

    def names(self) -> tuple[str, ...]:
        """The names of all passes, sorted."""
        return tuple(sorted({*self._places, *self._registered, *self._offered()}))

    def find(self, name: str) -> type[Pass]:
        """The pass of a name; PassError with the near names when there is none."""
        if name in self._registered:
            return self._registered[name]
        place = self._places.get(name) or self._offered().get(name)
        if place is None:
            near = near_names(name, self.names())
            raise PassError(
                f"there is no pass {name!r}",
                next_step=f"did you mean {near}?" if near else f"the passes are {', '.join(self.names())}",
            )
        return _load(name, place)

    def __iter__(self) -> Iterator[type[Pass]]:
        """All passes that can be loaded. What another distribution offers and cannot deliver is logged."""
        for name in self.names():
            try:
                yield self.find(name)
            except PassError as error:
                LOGGER.warning("%s", error)

    @staticmethod
    def _offered() -> Mapping[str, str]:
        return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


def _load(name: str, place: str) -> type[Pass]:
    module, _, attribute = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PassError(
            f"the pass {name!r} cannot be loaded: {error}",
            where=place,
            next_step="repair or remove the package that offers it",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Pass)) or getattr(found, "name", None) != name:
        raise PassError(f"{place} is not a pass of the name {name!r}", where=f"entry point {name}")
    return found


REGISTRY = Registry()
"""The registry that pipelines use unless they are given another."""

register = REGISTRY.register
