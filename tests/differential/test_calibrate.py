"""Collectives measured on real ranks: every rank holds one table, which the model then goes by."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from counterpoint import fake_world
from counterpoint.cli.calibrate import mesh_groups
from counterpoint.cost.accuracy import links_of
from counterpoint.cost.measured import MeasuredTable
from counterpoint.cost.model import CostModel
from counterpoint.errors import GroupError
from counterpoint.ir.ops import Kind
from counterpoint.runtime.calibrate import KINDS, measure_collectives
from counterpoint.runtime.operator_times import agreed

SIZES = (1024, 256 * 1024)


def job_world() -> dict[str, Any]:
    return measure_collectives(sizes=SIZES, repeats=2).to_data()


def job_late() -> list[float]:
    """Rank 0's clock says that each call took it 100 seconds, which is what waiting for a late peer looks like."""
    step = 100.0 if dist.get_rank() == 0 else 0.001
    ticks = itertools.count()
    kinds = [Kind.ALL_REDUCE, Kind.BROADCAST]
    table = measure_collectives(kinds=kinds, sizes=SIZES[:1], repeats=2, clock=lambda: next(ticks) * step)
    return [table.collectives[kind, (0, 1)][0][1] for kind in kinds]


def job_mesh() -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2))
    groups = [mesh.get_group(dim) for dim in range(2)]
    return measure_collectives(groups, kinds=[Kind.ALL_GATHER], sizes=SIZES[:1], repeats=1).to_data()


def job_mesh_option() -> list[int]:
    return [dist.get_world_size(group) for group in mesh_groups("1x2")]


def job_agreed() -> dict[str, float]:
    rank = float(dist.get_rank())
    return agreed({"both": rank, f"only {rank:g}": 5.0})


def test_all_ranks_hold_one_table_of_every_kind(ranks) -> None:
    first, second = (MeasuredTable.from_data(data) for data in ranks(2).run(job_world))
    assert first == second
    assert set(first.collectives) == {(kind, (0, 1)) for kind in KINDS}
    for (kind, layout), curve in first.collectives.items():
        assert [nbytes for nbytes, _ in curve] == list(SIZES)
        assert all(1 < us < 1e7 for _, us in curve)
        assert CostModel(table=first).collective_us(kind, SIZES[0], layout) == curve[0][1]
    assert "gloo on 2 ranks" in first.origin
    assert all(layout == (0, 1) for layout in links_of(first).links)


def test_waiting_for_a_late_peer_does_not_count_except_where_ranks_may_leave_early(ranks) -> None:
    assert ranks(2).run(job_late) == [[pytest.approx(1e3), pytest.approx(100e6)]] * 2


def test_groups_of_one_layout_share_a_curve(ranks) -> None:
    tables = [MeasuredTable.from_data(data) for data in ranks(4).run(job_mesh)]
    assert all(table == tables[0] for table in tables)
    assert set(tables[0].collectives) == {(Kind.ALL_GATHER, (0, 1)), (Kind.ALL_GATHER, (0, 2))}


def test_a_mesh_is_measured_dim_by_dim(ranks) -> None:
    assert ranks(2).run(job_mesh_option) == [[2, 1, 2]] * 2


def test_times_of_operators_are_agreed_on(ranks) -> None:
    assert ranks(2).run(job_agreed) == [{"both": 1.0, "only 0": 5.0, "only 1": 5.0}] * 2


def test_a_world_that_only_pretends_is_not_measured() -> None:
    with fake_world(4):
        assert measure_collectives(sizes=SIZES).collectives == {}


def test_without_a_process_group_the_call_says_what_to_do() -> None:
    assert not dist.is_initialized()
    with pytest.raises(GroupError, match="init_process_group"):
        measure_collectives()
