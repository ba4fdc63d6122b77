"""Before a compiled graph runs for the first time: do all ranks of its groups run the same?

All ranks, whether they compiled or hit a cache, exchange some bytes over the store once for each graph. A rank that
compiles again for other sizes, and ends with collectives that its groups have already agreed on, asks nobody: the
others may not compile again at all.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._guards import CompileContext

from counterpoint.inductor.fingerprint import package_version, source_hash
from counterpoint.inductor.plan import Plan
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.launches import Launch
from counterpoint.options import CompileOptions, described
from counterpoint.runtime.agreement import Meeting, Statement
from counterpoint.runtime.pretend import pretends

LOGGER = logging.getLogger("counterpoint.agreement")
Ranks = tuple[int, ...]

HARMLESS = frozenset(
    {"codegen", "verify", "on_error", "agreement_s", "require_bucketed", "require_pipelined", "max_exposed_us"}
)
"""Options that change how a graph is checked, or run, and not what its collectives are. Where code generation fell
back to plain calls on one rank, the collectives themselves show whether that matters."""


@dataclass
class Agreements:
    """What the groups of this process have agreed on, for as long as the world lives."""

    _world: Any = None
    _counts: Counter[Ranks] = field(default_factory=Counter)
    _agreed: set[tuple[Ranks, str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, graph: str, by_group: Mapping[Ranks, Statement], within_s: float, *, again: bool = False) -> None:
        """Compare with all ranks of each group. AgreementError when somebody differs or does not come.

        again: the code was compiled before, so the others need not come for what was agreed on already.
        """
        meetings = self._meetings(graph, by_group, within_s, again)
        for meeting, statement in meetings:
            LOGGER.debug("graph %s: asking ranks %s about %s", graph, meeting.ranks, statement)
        for meeting, statement in meetings:
            meeting.announce(statement)
        # In one order on all ranks, so that no two groups wait for each other.
        for meeting, statement in meetings:
            meeting.conclude(statement)
        LOGGER.info("graph %s: the ranks of %d groups agree", graph, len(meetings))
        with self._lock:
            self._agreed.update((meeting.ranks, _digest(statement)) for meeting, statement in meetings)

    def _meetings(
        self, graph: str, by_group: Mapping[Ranks, Statement], within_s: float, again: bool
    ) -> list[tuple[Meeting, Statement]]:
        with self._lock:
            if self._world is not dist.group.WORLD:
                # Another world has another store, and all its ranks begin anew.
                self._world = dist.group.WORLD
                self._counts.clear()
                self._agreed.clear()
            found = []
            for ranks, statement in sorted(by_group.items(), key=lambda item: item[0]):
                if again and (ranks, _digest(statement)) in self._agreed:
                    continue
                topic = f"{'-'.join(map(str, ranks)) if len(ranks) < 9 else _hashed(str(ranks))}/{self._counts[ranks]}"
                self._counts[ranks] += 1
                found.append((_meeting(topic, ranks, graph, within_s), statement))
            return found


AGREEMENTS = Agreements()
"""Those of this process."""


def first_call(
    call: Callable[..., Any],
    plan: Plan,
    graph: str,
    launches: Sequence[Launch],
    groups: GroupTable,
    agreements: Agreements = AGREEMENTS,
) -> Callable[..., Any] | None:
    """Something to call in place of `call` until it has returned once; None where there is nobody to ask."""
    within_s = plan.options.agreement_s
    again = _compiled_before()
    statements = _statements(plan, graph, launches, groups)
    if within_s is None or not statements or not _has_store():
        return None

    @functools.wraps(call, updated=())
    def ask_and_call(*args: Any, **kwargs: Any) -> Any:
        agreements.ask(graph, statements, within_s, again=again)
        return call(*args, **kwargs)

    return ask_and_call


def settings_of(plan: Plan) -> dict[str, str]:
    """What the decisions for a graph depend on, by the name that a message would give it."""
    return {
        "the version of counterpoint": package_version(),
        "the code of counterpoint": source_hash()[:16],
        "the version of torch": torch.__version__,
        "the pipeline": plan.pipeline.text,
        "the options": _decisive(plan.options).text(),
        "the costs": replace(plan.cost_model, fuses=True).text,
    }


def _decisive(options: CompileOptions) -> CompileOptions:
    """The options without those in which ranks may differ and still decide alike."""
    return CompileOptions(
        **{name: getattr(options, name) for name in described(CompileOptions) if name not in HARMLESS}
    )


def _statements(plan: Plan, graph: str, launches: Sequence[Launch], groups: GroupTable) -> dict[Ranks, Statement]:
    found: dict[Ranks, list[Launch]] = {}
    for launch in launches:
        if launch.group in groups and len(groups[launch.group]) > 1:
            found.setdefault(groups[launch.group], []).append(launch)
    settings = settings_of(plan)
    return {ranks: Statement(graph=graph, settings=settings, launches=tuple(own)) for ranks, own in found.items()}


def _compiled_before() -> bool:
    """Whether the code being compiled now was compiled before, for other sizes or another state of the program."""
    compile_id = CompileContext.current_compile_id()
    attempts = (getattr(compile_id, name, None) for name in ("frame_compile_id", "compiled_autograd_id"))
    return any(attempt for attempt in attempts)


def _has_store() -> bool:
    """Pretended worlds have ranks that never come."""
    return dist.is_initialized() and not pretends()


def _meeting(topic: str, ranks: Ranks, graph: str, within_s: float) -> Meeting:
    return Meeting(
        store=c10d._get_default_store(), topic=topic, ranks=ranks, rank=dist.get_rank(), graph=graph, within_s=within_s
    )


def _digest(statement: Statement) -> str:
    facts = [[launch.kind, launch.way, launch.reduce_op, *launch.tensors] for launch in statement.launches]
    return _hashed(json.dumps([facts, dict(statement.settings)]))


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
