"""Every collective of the input graph ends with exactly one verdict, whatever passes say and in whatever order."""

from __future__ import annotations

import json

import pytest
import torch
from torch.fx import GraphModule

from counterpoint.errors import CounterpointError, PassError
from counterpoint.ir.build import GraphBuilder, collectives_in
from counterpoint.ir.reason import Refusal
from counterpoint.passes.book import LedgerBook, carrying, origins_of
from counterpoint.passes.ledger import Ledger, VerdictKind

C10D = torch.ops._c10d_functional


def two_reductions_and_a_gather() -> tuple[GraphModule, GraphBuilder]:
    builder = GraphBuilder(groups={"dp": range(4)})
    left, right = builder.input("left", (2, 3)), builder.input("right", (5,), torch.bfloat16)
    outputs = (
        builder.all_reduce(left, "avg", "dp"),
        builder.all_gather(right, "dp"),
        builder.all_reduce(right, group="dp"),
    )
    return builder.finish(*outputs), builder


def opened() -> tuple[LedgerBook, GraphModule]:
    gm, builder = two_reductions_and_a_gather()
    return LedgerBook.open(gm.graph, "forward", builder.groups), gm


def test_opening_names_and_describes_every_collective() -> None:
    book, gm = opened()
    first, gather, second = book.close()
    assert [e.facts.origin for e in (first, gather, second)] == [
        "forward/all_reduce#0",
        "forward/all_gather#0",
        "forward/all_reduce#1",
    ]
    assert [origins_of(node) for node in collectives_in(gm.graph)] == [(e.facts.origin,) for e in book.close()]
    facts = first.facts
    assert (facts.group, facts.group_size, facts.reduce_op, facts.nbytes) == ("dp", 4, "avg", 24)
    assert (facts.dtypes, facts.shapes) == (("float32",), ("2x3",))
    assert gather.facts.nbytes == 10


def test_names_are_the_same_on_every_opening() -> None:
    book, gm = opened()
    again = LedgerBook.open(gm.graph, "forward")
    assert list(again.lines) == list(book.lines)


def test_what_nobody_spoke_about_is_left_alone_and_shares_sum_to_all() -> None:
    book, gm = opened()
    book.page("bucket").bucketed(collectives_in(gm.graph)[0], into="b0")
    totals = book.close().totals()
    assert {kind: total.count for kind, total in totals.items()} == {
        VerdictKind.BUCKETED: 1,
        VerdictKind.LEFT_ALONE: 2,
    }
    assert sum(total.percent for total in totals.values()) == pytest.approx(100)
    assert {e.verdict.code for e in book.close() if e.verdict.kind is VerdictKind.LEFT_ALONE} == {"no-pass"}


def test_a_later_rewrite_refines_an_earlier_one_and_history_keeps_both() -> None:
    book, gm = opened()
    node = collectives_in(gm.graph)[0]
    book.page("bucket").bucketed(node, into="b0")
    book.page("lower").lowered(node, to="one-shot")
    entry = book.close().entries[0]
    assert str(entry.verdict) == "lowered to one-shot"
    assert [str(verdict) for verdict in entry.history] == ["bucketed into b0", "lowered to one-shot"]


def test_a_later_refusal_does_not_undo_what_was_done() -> None:
    book, gm = opened()
    node = collectives_in(gm.graph)[0]
    book.page("bucket").bucketed(node, into="b0")
    book.page("pipeline").left_alone(node, Refusal("no-wait", node.name), blocking=node)
    entry = book.close().entries[0]
    assert entry.verdict.kind is VerdictKind.BUCKETED
    assert len(entry.history) == 2


def test_a_rewrite_supersedes_an_earlier_refusal_and_the_last_refusal_counts() -> None:
    book, gm = opened()
    first, second, _ = collectives_in(gm.graph)
    for code in ("several-waits", "result-escapes"):
        book.page(f"try-{code}").left_alone([first, second], Refusal(code, "x"))
    book.page("hide").hidden(first, behind="mm")
    one, other, _ = book.close()
    assert str(one.verdict) == "hidden behind mm"
    assert (other.verdict.code, other.verdict.blocking) == ("result-escapes", "x")


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        (("too-small", "no-partner"), "too-small"),
        (("no-matmul", "merge-cycle", "no-partner", "library-best"), "merge-cycle"),
        (("not-a-gradient", "no-partner"), "no-partner"),
        (("no-matmul", "library-best"), "no-matmul"),
        (("not-probed", "library-best"), "library-best"),
    ],
)
def test_the_reason_that_tells_most_counts_and_history_keeps_them_all(said: tuple[str, ...], counts: str) -> None:
    book, gm = opened()
    node = collectives_in(gm.graph)[0]
    for number, code in enumerate(said):
        book.page(f"pass-{number}").left_alone(node, Refusal(code, "x"))
    entry = book.close().entries[0]
    assert entry.verdict.code == counts
    assert tuple(verdict.code for verdict in entry.history) == said


def test_one_pass_cannot_give_two_verdicts() -> None:
    book, gm = opened()
    page, node = book.page("bucket"), collectives_in(gm.graph)[0]
    page.bucketed(node, into="b0")
    page.bucketed(node, into="b0")
    with pytest.raises(PassError, match="two verdicts, bucketed into b0 and hidden behind mm"):
        page.hidden(node, behind="mm")


def test_emitted_nodes_carry_the_origins_they_replace() -> None:
    book, gm = opened()
    first, second, third = collectives_in(gm.graph)
    third.meta |= carrying(third, first)
    book.page("bucket").bucketed(third, into=third.name)
    assert origins_of(third) == ("forward/all_reduce#1", "forward/all_reduce#0")
    assert [str(entry.verdict).split()[0] for entry in book.close()] == ["bucketed", "left-alone:", "bucketed"]
    assert origins_of(second) == ("forward/all_gather#0",)


def test_speaking_about_what_is_no_collective_is_refused() -> None:
    book, gm = opened()
    placeholder = next(iter(gm.graph.nodes))
    with pytest.raises(PassError, match="no collective of the input graph"):
        book.page("bucket").bucketed(placeholder, into="b0")
    with pytest.raises(PassError, match="forward/all_reduce#9 is no collective"):
        book.page("bucket").bucketed(["forward/all_reduce#9"], into="b0")


def test_a_vanished_collective_needs_the_verdict_deduplicated() -> None:
    book, gm = opened()
    node = collectives_in(gm.graph)[0]
    origins = origins_of(node)
    node.meta.pop("counterpoint_origin")
    assert [facts.origin for facts in book.unaccounted(gm.graph)] == list(origins)
    assert book.strangers(gm.graph) == (node,)
    book.page("bucket").bucketed(origins, into="b0")
    assert [facts.origin for facts in book.unaccounted(gm.graph)] == list(origins)
    book.page("share").deduplicated(origins, into="other")
    assert book.unaccounted(gm.graph) == ()


def test_rewinding_forgets_what_was_said_after_the_mark() -> None:
    book, gm = opened()
    first, second, _ = collectives_in(gm.graph)
    book.page("bucket").bucketed(first, into="b0")
    mark = book.mark()
    book.page("hide").hidden([first, second], behind="mm")
    book.rewind(mark)
    assert [len(entry.history) for entry in book.close()] == [1, 1, 1]
    assert str(book.close().entries[0].verdict) == "bucketed into b0"


def test_collectives_that_cannot_be_read_are_left_alone_with_the_refusal() -> None:
    gm, _ = two_reductions_and_a_gather()
    first, gather, _ = collectives_in(gm.graph)
    del first.all_input_nodes[0].meta["val"]
    gather.args = gather.args[:1]
    entries = LedgerBook.open(gm.graph).close().entries
    assert [e.verdict.code for e in entries] == ["no-metadata", "malformed", "no-pass"]


def test_unknown_operators_of_communication_libraries_stand_in_the_ledger() -> None:
    library = torch.library.Library("c10d_functional", "FRAGMENT")
    library.define("counterpoint_test_exchange(Tensor x) -> Tensor")
    library.impl("counterpoint_test_exchange", lambda x: x.clone(), "CompositeExplicitAutograd")
    builder = GraphBuilder()
    x = builder.input("x", (2,))
    gm = builder.finish(builder.call(torch.ops.c10d_functional.counterpoint_test_exchange.default, x))
    (entry,) = LedgerBook.open(gm.graph).close()
    assert (entry.facts.kind, entry.verdict.code) == ("unknown", "unknown-operator")
    library._destroy()


def test_symbolic_sizes_are_written_as_symbols() -> None:
    builder = GraphBuilder()
    size = builder.symbol("s", 8)
    gm = builder.finish(builder.all_reduce(builder.input("x", (size, 2))))
    (entry,) = LedgerBook.open(gm.graph).close()
    assert entry.facts.nbytes is None
    assert entry.facts.shapes[0].endswith("x2")
    assert LedgerBook.open(gm.graph).close().totals()[VerdictKind.LEFT_ALONE].unsized == 1


def test_the_ledger_survives_json() -> None:
    book, gm = opened()
    first, second, _ = collectives_in(gm.graph)
    book.page("bucket{cap-mb=1}").bucketed(first, into="b0")
    book.page("pipeline").left_alone([first, second], Refusal("no-wait", "n", "detail", "hint"))
    ledger = book.close()
    assert Ledger.from_data(json.loads(json.dumps(ledger.to_data()))) == ledger


def test_data_of_another_schema_is_refused_and_unknown_fields_are_passed_over() -> None:
    data = opened()[0].close().to_data()
    data["collectives"][0]["added_later"] = 1
    assert len(Ledger.from_data(data)) == 3
    with pytest.raises(CounterpointError, match="schema 2, this version reads 1"):
        Ledger.from_data(data | {"schema": 2})


def test_a_ledger_cannot_hold_a_collective_twice() -> None:
    entry = opened()[0].close().entries[0]
    with pytest.raises(PassError, match="twice"):
        Ledger((entry, entry))


def test_the_node_in_the_way_is_told_with_the_users_line_whatever_it_is() -> None:
    gm, builder = two_reductions_and_a_gather()
    line = '  File "/home/me/model.py", line {}, in forward\n    y = f(x)\n'
    first, gather, second = collectives_in(gm.graph)
    right = next(node for node in gm.graph.nodes if node.name == "right")
    for number, node in enumerate((first, right)):
        node.meta["stack_trace"] = line.format(10 + number)
    book = LedgerBook.open(gm.graph, "forward", builder.groups)
    page = book.page("bucket")
    page.left_alone(second, Refusal("merge-cycle", first.name))
    page.left_alone(gather, Refusal("written-buffer", right.name))
    page.left_alone(first, Refusal("merge-cycle", "made_by_a_pass"))
    untold, in_gather, in_second = (entry.verdict.blocking_source for entry in book.close())
    assert in_second == "/home/me/model.py:10 in forward"
    assert in_gather == "/home/me/model.py:11 in forward"
    assert untold == ""
