"""Measured links on real ranks: all hold one table, also for groups of their own; it sizes buckets, identifies code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import counterpoint
from counterpoint import fake_world
from counterpoint.cost.link import Link
from counterpoint.errors import GroupError
from counterpoint.inductor.plan import make_plan
from counterpoint.inductor.request import read_request
from counterpoint.report.history import clear_reports, reports
from counterpoint.runtime.measure import LINKS, Links, calibrate_links


def job_world() -> tuple[str, Link | None]:
    links = Links()
    found = calibrate_links(links=links)
    return links.table.text, found


def job_own_groups() -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    links = Links()
    for name in ("outer", "inner"):
        calibrate_links(mesh.get_group(name), links=links)
    return links.table.text


def identity() -> str | None:
    return make_plan(read_request({"passes": "bucket-all-reduce"}, None), [torch.ones(1)]).identity


def job_identity() -> tuple[Any, ...]:
    LINKS.clear()
    try:
        before = identity()
        calibrate_links()
        measured = identity()
        LINKS.add((0, 1), Link(latency_us=12345.0, bandwidth_gbps=1.0))
        return before, measured, identity()
    finally:
        LINKS.clear()


def job_compiled(link: Link) -> int:
    """Collectives left of eight gradients of 2 MB."""
    LINKS.clear()
    clear_reports()
    LINKS.add((0, 1), link)
    weights = [torch.ones(512, 1024, requires_grad=True) for _ in range(8)]
    model = counterpoint.replicate(_Sum(weights))
    options = {"codegen": "eager", "passes": "bucket-all-reduce", "on_error": "raise"}
    torch.compile(model, backend="counterpoint", options=options)().backward()
    LINKS.clear()
    return next(record for record in reports() if record.role == "backward").reports[0].collectives_after


class _Sum(torch.nn.Module):
    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(weights)

    def forward(self) -> Tensor:
        return torch.stack([weight.sum() for weight in self.weights]).sum()


def test_all_ranks_hold_the_same_table(ranks) -> None:
    first, second = ranks(2).run(job_world)
    assert first == second
    assert first[1] is not None
    assert first[0] == f"0,1: {first[1]}"
    assert 1 < first[1].latency_us < 1e6
    assert 0.01 < first[1].bandwidth_gbps < 1000


def test_groups_of_one_layout_share_an_entry(ranks) -> None:
    tables = ranks(4).run(job_own_groups)
    assert len(set(tables)) == 1
    assert [entry.split(":")[0] for entry in tables[0].split("; ")] == ["0,1", "0,2"]


def test_another_table_is_another_identity_and_the_same_on_all_ranks(ranks) -> None:
    first, second = ranks(2).run(job_identity)
    assert first == second
    assert len(set(first)) == 3


@pytest.mark.parametrize(
    ("link", "left"),
    [(Link(latency_us=20000, bandwidth_gbps=10), 1), (Link(latency_us=50, bandwidth_gbps=1), 8)],
)
def test_the_backend_sizes_buckets_by_the_table(ranks, link: Link, left: int) -> None:
    assert ranks(2).run(job_compiled, link, reset_compiler=True) == [left, left]


def test_a_world_that_only_pretends_is_not_measured() -> None:
    links = Links()
    with fake_world(4):
        assert calibrate_links(links=links) is None
    assert links.table.text == ""


def test_without_a_process_group_the_call_says_what_to_do() -> None:
    assert not dist.is_initialized()
    with pytest.raises(GroupError, match="init_process_group"):
        calibrate_links()
