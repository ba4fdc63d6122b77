"""Ranks compare what they are about to run, over a store that threads share in place of ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.errors import AgreementError
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.launches import Launch, launches_of
from counterpoint.runtime.agreement import Meeting, Statement, difference

SETTINGS = {"the options": "verify=full", "the pipeline": "bucket-all-reduce"}


def launch(tensors: str = "float32 4x4", kind: str = "all_reduce", op: str = "sum", node: str = "node") -> Launch:
    return Launch(group="tp", kind=kind, reduce_op=op, tensors=(tensors,), node=node)


def statement(*launches: Launch, **settings: str) -> Statement:
    return Statement(graph="0/0 forward", settings=SETTINGS | settings, launches=launches)


ALIKE = statement(launch(node="first"), launch("bfloat16 8", kind="all_gather", op="", node="second"))


def meet(statements: dict[int, Statement], ranks: tuple[int, ...], within_s: float = 30.0) -> dict[int, str]:
    """What each rank that comes hears; empty for agreement."""
    store = dist.HashStore()

    def come(rank: int) -> str:
        meeting = Meeting(store=store, topic="t", ranks=ranks, rank=rank, graph="0/0 forward", within_s=within_s)
        meeting.announce(statements[rank])
        try:
            meeting.conclude(statements[rank])
        except AgreementError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(statements)) as pool:
        return dict(zip(statements, pool.map(come, statements), strict=True))


def test_ranks_that_agree_go_on() -> None:
    assert meet(dict.fromkeys((2, 5, 7), ALIKE), (2, 5, 7)) == {2: "", 5: "", 7: ""}


def test_every_rank_hears_which_rank_differs_and_at_which_node() -> None:
    other = replace(ALIKE, launches=(ALIKE.launches[0], launch("bfloat16 9", kind="all_gather", op="", node="odd")))
    heard = meet({2: ALIKE, 5: other, 7: ALIKE}, (2, 5, 7))
    assert len(set(heard.values())) == 1
    assert "rank 5 would run other collectives than rank 2: number 2 is all_gather bfloat16 9 at node odd" in heard[7]
    assert "all_gather bfloat16 8 at node second on rank 2" in heard[7]


def test_a_leader_that_differs_is_reported_by_all_others() -> None:
    heard = meet({0: statement(launch()), 1: ALIKE, 2: ALIKE}, (0, 1, 2))
    assert all("so do rank 2" in text for text in heard.values())


def test_settings_that_differ_are_named() -> None:
    heard = meet({0: ALIKE, 1: replace(ALIKE, settings={**SETTINGS, "the options": "verify=off"})}, (0, 1))
    assert "rank 1 compiles with other settings than rank 0: the options is 'verify=off' there" in heard[0]


@pytest.mark.parametrize(("present", "missing"), [((0, 1), "rank 3"), ((1, 3), "rank 0"), ((0,), "ranks 1, 3")])
def test_who_does_not_come_is_named_after_the_deadline(present: tuple[int, ...], missing: str) -> None:
    heard = meet(dict.fromkeys(present, ALIKE), (0, 1, 3), within_s=0.2)
    assert all(f"{missing} did not come to run a graph within 0.2 s" in text for text in heard.values())


@pytest.mark.parametrize(
    "other",
    [
        launch("float32 4x5"),
        launch("float32 4"),
        launch("float32 4x4x1"),
        launch("bfloat16 4x4"),
        launch(kind="all_gather"),
        launch(op="max"),
        replace(launch(), tensors=("float32 4x4", "float32 4x4")),
    ],
)
def test_collectives_that_cannot_meet_differ(other: Launch) -> None:
    assert "would run other collectives" in difference(statement(launch()), statement(other), 0, 1)
    assert "would run other collectives" in difference(statement(other), statement(launch()), 0, 1)


@pytest.mark.parametrize("other", [launch("float32 ?x4"), launch(node="elsewhere"), replace(launch(), group="1")])
def test_symbols_names_of_nodes_and_of_groups_do_not_count(other: Launch) -> None:
    assert difference(statement(launch()), statement(other), 0, 1) == ""


def test_one_collective_more_is_a_difference() -> None:
    more = statement(launch(), launch(node="extra"))
    assert "number 2 is all_reduce sum float32 4x4 at node extra on rank 1, and none" in difference(
        statement(launch()), more, 0, 1
    )
    assert "number 2 is none on rank 1" in difference(more, statement(launch()), 0, 1)


names = st.text(max_size=8)
drawn = st.builds(
    Launch,
    group=names,
    kind=names,
    reduce_op=names,
    tensors=st.lists(st.sampled_from(["float32 4x?", "bool scalar"]), max_size=3).map(tuple),
    node=names,
)


@given(st.lists(drawn, max_size=6), st.dictionaries(names, names, max_size=3))
@settings(deadline=None)
def test_a_statement_travels_unchanged_and_agrees_with_itself(launches: list[Launch], given: dict[str, str]) -> None:
    said = Statement(graph="g", settings=given, launches=tuple(launches))
    assert Statement.unpacked(said.packed()) == said
    assert difference(said, Statement.unpacked(said.packed()), 0, 1) == ""


def test_launches_are_read_in_order_with_what_meets_on_the_wire() -> None:
    builder = GraphBuilder()
    x, y = builder.input("x", (4, 4)), builder.input("y", (3,))
    gm = builder.finish(builder.all_reduce(x), builder.all_gather(y))
    assert [str(found) for found in launches_of(gm.graph)] == ["all_reduce sum float32 4x4", "all_gather float32 3"]
    assert all(Launch.from_data(found.to_data()) == found for found in launches_of(gm.graph))
