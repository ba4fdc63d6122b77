"""The group that torchrun made, tried: who is in it, whether all run the same, and what it can do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from counterpoint.cli.doctor.finding import Answer, Finding, Probe, State, absent, broken, found_by, works
from counterpoint.cost.capabilities import Capabilities, Capability
from counterpoint.inductor.fingerprint import package_version, source_hash
from counterpoint.options import effective
from counterpoint.report.calibration_text import size_text
from counterpoint.report.words import time_text
from counterpoint.runtime import self_test
from counterpoint.runtime.measure import device_of
from counterpoint.runtime.probe import PROBES

AREA = "group"


def group_findings(within_s: float, said: Callable[[str], object]) -> list[Finding]:
    """Try everything, on all ranks in one order. After a failure the rest is not tried: a rank may not come to it."""
    found: list[Finding] = []
    for probe in _probes(within_s):
        if any(finding.state is State.BROKEN and finding.name in _NEEDED for finding in found):
            found.append(
                Finding(area=AREA, name=probe.name, state=State.ABSENT, said="not tried after the failure above")
            )
            continue
        found += found_by([probe], said)
    return found


_NEEDED = frozenset({"ranks", "sums"})
"""What the rest rests upon."""


def _probes(within_s: float) -> list[Probe]:
    facts: list[dict[str, str]] = []
    look: dict[str, Callable[[], Answer]] = {
        "ranks": partial(_ranks, facts, within_s),
        "same program": partial(_same, facts),
        "sums": _sums,
        "latency and bandwidth": _speed,
        "messages": partial(_capability, lambda can: can.messages),
        "shared memory": partial(_capability, lambda can: can.shared_memory),
        "symmetric memory": partial(_capability, lambda can: can.symmetric_memory),
    }
    return [Probe(AREA, name, one) for name, one in look.items()]


def _ranks(facts: list[dict[str, str]], within_s: float) -> Answer:
    more = {
        "the version of counterpoint": package_version(),
        "the code of counterpoint": source_hash()[:12],
        "the options": effective().options.text() or "all at their defaults",
    }
    facts += self_test.exchanged(self_test.facts_of_this_rank(more), within_s)
    hosts = Counter(one[self_test.HOST] for one in facts)
    told = ", ".join(f"{count} on {host}" for host, count in list(hosts.items())[:8])
    return works(f"{len(facts)} ranks, backend {dist.get_backend()}: {told}{', ...' if len(hosts) > 8 else ''}")


def _same(facts: list[dict[str, str]]) -> Answer:
    found = list(self_test.differences(facts))
    if found:
        return broken(
            f"ranks differ. {' | '.join(found)}",
            "give all ranks the same code, versions, options and environment: ranks that decide differently hang",
        )
    return works("the same code, versions, options and environment on all ranks")


def _sums() -> Answer:
    self_test.check_sums()
    return works(f"an all-reduce over {dist.get_world_size()} ranks adds up")


def _speed() -> Answer:
    if dist.get_world_size() < 2:
        return absent("a group of one rank has no link", "start several processes, torchrun --nproc-per-node 2")
    points = self_test.measured_points()
    told = (f"{size_text(one.nbytes)} in {time_text(one.us)} ({one.gbps:.3g} Gbit/s a rank)" for one in points)
    return works(f"all-reduce of {', '.join(told)}")


def _capability(which: Callable[[Capabilities], Capability]) -> Answer:
    world: Any = dist.group.WORLD
    found = which(PROBES.of(world, torch.device(device_of(None).type)))
    return works(found.reason) if found else absent(found.reason)
