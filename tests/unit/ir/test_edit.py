"""Claims about the editor: what a commit leaves, what is refused, and that a transaction taken back leaves no trace."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from counterpoint._torch import FakeTensor
from counterpoint.errors import EditError
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.edit import Changes, Edit, EditCounts, EditKind, EditRejected, GraphEditor, Transaction
from counterpoint.ir.reason import Refusal
from tests.support.graph_picture import picture

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional


class Two:
    """Two gradients, divided and reduced one after the other."""

    def __init__(self) -> None:
        self.builder = b = GraphBuilder({"dp": range(4)})
        self.x, self.y = b.input("x", (8, 4)), b.input("y", (8, 4))
        self.dx = b.call(ATEN.div.Tensor, self.x, 4)
        self.sx = b.call(C10D.all_reduce.default, self.dx, "sum", "dp")
        self.wx = b.wait(self.sx)
        self.dy = b.call(ATEN.div.Tensor, self.y, 4)
        self.sy = b.call(C10D.all_reduce.default, self.dy, "sum", "dp")
        self.wy = b.wait(self.sy)
        self.sx.meta |= {"stack_trace": "line 1", "seq_nr": 7, "nn_module_stack": {"a": "b"}, "mine": 1}
        self.gm: GraphModule = b.finish(self.wx, self.wy)
        self.graph: Graph = self.gm.graph
        self.output = list(self.graph.nodes)[-1]
        self.editor = GraphEditor(self.gm, b.groups)

    def order(self) -> list[str]:
        return [node.name for node in self.graph.nodes]


@pytest.fixture
def two() -> Two:
    return Two()


def fuse(two: Two, tx: Transaction) -> None:
    def body(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flat = torch.cat([a.flatten(), b.flatten()])
        summed = C10D.wait_tensor.default(C10D.all_reduce.default(flat, "sum", "dp"))
        one, other = summed.split([a.numel(), b.numel()])
        return one.view(a.shape), other.view(b.shape)

    new = tx.inline(body, [two.dx, two.dy], before=two.output, like=[two.sx, two.sy])
    tx.replace({two.wx: new[0], two.wy: new[1]})
    tx.erase([two.sx, two.wx, two.sy, two.wy])


def fail_after(two: Two, rewrite: Callable[[Two, Transaction], None], error: type[BaseException] = KeyError) -> None:
    """Do the rewrite and raise an error at its end."""

    def failing(tx: Transaction) -> None:
        rewrite(two, tx)
        raise error

    with pytest.raises(error):
        two.editor.attempt("fails", failing)


# -- committing -------------------------------------------------------------------------------------------------------


def test_a_rewrite_stands(two: Two) -> None:
    with two.editor.transaction("fuse") as tx:
        fuse(two, tx)
    two.graph.lint()
    two.gm.recompile()
    reduces = two.graph.find_nodes(op="call_function", target=C10D.all_reduce.default)
    assert len(reduces) == 1
    assert two.editor.counts == tx.counts == EditCounts(inserted=10, erased=4, replaced=2)
    old = [(8, 4), (8, 4)]
    assert [tuple(node.meta["val"].shape) for node in two.output.all_input_nodes] == old


def test_new_nodes_have_values_in_the_graphs_own_mode_and_tell_where_they_come_from(two: Two) -> None:
    with two.editor.transaction("insert") as tx:
        new = tx.call(ATEN.cat.default, ([two.dx, two.dx],), after=two.dx, like=[two.sx, two.sy], meta={"extra": 2})
    value = new.meta["val"]
    assert isinstance(value, FakeTensor)
    assert value.fake_mode is two.builder.fake_mode
    assert tuple(value.shape) == tuple(new.meta["tensor_meta"].shape) == (16, 4)
    carried = {key: new.meta[key] for key in ("stack_trace", "seq_nr", "nn_module_stack", "extra")}
    assert carried == {"stack_trace": "line 1", "seq_nr": 7, "nn_module_stack": {"a": "b"}, "extra": 2}
    assert "mine" not in new.meta
    assert new.prev is two.dx


def test_symbolic_shapes_go_through_calls_and_bodies() -> None:
    b = GraphBuilder()
    x = b.input("x", (b.symbol("rows", 6), 4))
    gm = b.finish(b.call(ATEN.relu.default, x))
    out = list(gm.graph.nodes)[-1]
    with GraphEditor(gm).transaction("double") as tx:
        (twice,) = tx.inline(lambda t: torch.cat([t, t]).view(2 * t.shape[0], 2, 2), [x], before=out)
        flat = tx.call(ATEN.flatten.using_ints, (twice,), before=out)
    assert str(twice.meta["val"].shape[0]) == f"2*{x.meta['val'].shape[0]}"
    assert flat.meta["val"].dim() == 1
    gm.graph.lint()


def test_two_nodes_with_one_value_are_told_apart_in_a_body(two: Two) -> None:
    two.dy.meta["val"] = two.dx.meta["val"]
    with two.editor.transaction("body") as tx:
        (new,) = tx.inline(torch.sub, [two.dx, two.dy], before=two.output)
    assert new.all_input_nodes == [two.dx, two.dy]


def test_a_body_that_holds_a_tensor_of_its_own_is_refused(two: Two) -> None:
    constant = torch.ones(8, 4)
    with pytest.raises(EditError, match="every tensor as an input"), two.editor.transaction("body") as tx:
        tx.inline(lambda t: t + constant, [two.dx], before=two.output)


def test_groups_move_together_and_keep_their_order(two: Two) -> None:
    with two.editor.transaction("move") as tx:
        tx.move([two.wx, two.dx, two.sx], after=two.sy)
    assert two.order()[2:] == [n.name for n in (two.dy, two.sy, two.dx, two.sx, two.wx, two.wy, two.output)]
    assert tx.counts.moved == 3
    with two.editor.transaction("nothing") as tx:
        tx.move([two.sx, two.dx], before=two.wx)
    assert tx.counts == EditCounts()


def test_arguments_and_values(two: Two) -> None:
    with two.editor.transaction("arguments") as tx:
        tx.replace_input(two.dx, two.x, two.y)
        tx.set_arguments(two.dy, (two.x, 8))
        tx.annotate(two.dy, note="new")
    assert two.dx.args == (two.y, 4)
    assert two.dy.args == (two.x, 8)
    assert two.dy.meta["note"] == "new"
    with two.editor.transaction("value") as tx:
        wide = tx.call(ATEN.cat.default, ([two.x, two.y],), before=two.dx)
        tx.replace_input(two.dx, two.y, wide)
        tx.revalue(two.dx)
    assert tuple(two.dx.meta["val"].shape) == (16, 4)


def test_settling_moves_what_stands_wrong_and_no_more(two: Two) -> None:
    with two.editor.transaction("fuse early") as tx:
        both = tx.call(ATEN.add.Tensor, (two.dx, two.dy), before=two.sx)
        tx.settle()
    assert two.order()[2:6] == [n.name for n in (two.dx, two.sx, two.wx, two.dy)]
    assert two.dy < both
    two.graph.lint()


def test_settling_refuses_a_cycle(two: Two) -> None:
    def rewrite(tx: Transaction) -> None:
        tx.replace_input(two.dx, two.x, two.wx)
        tx.settle()

    assert refused(two, rewrite).code == "use-before-made"


def test_listeners_hear_of_committed_edits_only(two: Two) -> None:
    heard: list[Edit] = []
    two.editor.listeners.append(heard.append)
    fail_after(two, fuse)
    assert heard == []
    assert two.editor.counts == EditCounts()
    with two.editor.transaction("works") as tx:
        new = tx.call(ATEN.relu.default, (two.wx,), after=two.wx)
        tx.replace({two.wx: new})
    assert heard == [Edit(EditKind.INSERTED, new), Edit(EditKind.REPLACED, two.wx, new)]
    assert new.args == (two.wx,), "the new node keeps using the old one"


# -- refusing ---------------------------------------------------------------------------------------------------------


def refused(two: Two, rewrite: object) -> Refusal:
    """The refusal of a rewrite that must leave no trace."""
    before = picture(two.graph)
    refusal = two.editor.attempt("try", rewrite)  # type: ignore[arg-type]
    assert refusal is not None
    assert picture(two.graph) == before
    return refusal


def test_an_operand_below_its_use_is_refused(two: Two) -> None:
    assert refused(two, lambda tx: tx.move(two.sx, before=two.dx)).code == "use-before-made"
    assert refused(two, lambda tx: tx.move(two.sx, after=two.wx)).code == "use-before-made"
    assert refused(two, lambda tx: tx.replace_input(two.dx, two.x, two.wy)).code == "use-before-made"
    assert refused(two, lambda tx: tx.call(ATEN.relu.default, (two.wy,), before=two.sx)).code == "use-before-made"


def test_nothing_stands_among_placeholders_or_after_the_output(two: Two) -> None:
    assert refused(two, lambda tx: tx.call(ATEN.relu.default, (two.x,), after=two.x)).code == "graph-form"
    assert refused(two, lambda tx: tx.call(ATEN.relu.default, (two.x,), after=two.output)).code == "graph-form"


class Conflicts:
    """A write with a read on either side, two draws, and a barrier between two reduces."""

    def __init__(self) -> None:
        b = GraphBuilder({"dp": range(2)})
        self.x, self.y = b.input("x", (4,)), b.input("y", (4,))
        self.read = b.call(ATEN.relu.default, self.x)
        self.write = b.call(ATEN.mul_.Tensor, self.x, 2)
        self.again = b.call(ATEN.neg.default, self.x)
        self.draw_1 = b.call(ATEN.bernoulli.default, self.y)
        self.draw_2 = b.call(ATEN.bernoulli.default, self.y)
        self.s1 = b.call(C10D.all_reduce.default, self.y, "sum", "dp")
        self.w1 = b.wait(self.s1)
        self.barrier = b.graph.call_function(print, ())
        self.s2 = b.call(C10D.all_reduce.default, self.draw_1, "sum", "dp")
        self.w2 = b.wait(self.s2)
        self.free = b.call(ATEN.relu.default, self.y)
        self.late = b.call(ATEN.zero_.default, self.y)
        self.graph = b.finish(self.read, self.again, self.draw_2, self.w1, self.w2, self.free).graph
        self.editor = GraphEditor(self.graph)


MUST_REFUSE = {
    "a read below a write": ("read", "again"),
    "a read above a write": ("again", "read"),
    "a write above a read": ("write", "read"),
    "a write below a read": ("write", "draw_1"),
    "a draw above a draw": ("draw_2", "draw_1"),
    "a start below a barrier": ("w1", "s2"),
    "a start above a barrier": ("s2", "barrier"),
    "a barrier above a wait": ("barrier", "w1"),
    "a barrier below a start": ("barrier", "w2"),
    "a write into what is in flight": ("late", "w1"),
}


@pytest.mark.parametrize("case", MUST_REFUSE)
def test_conflicting_nodes_keep_their_order(case: str) -> None:
    c = Conflicts()
    moved, anchor = (getattr(c, name) for name in MUST_REFUSE[case])
    before = picture(c.graph)
    refusal = c.editor.attempt(case, lambda tx: tx.move(moved, before=anchor))
    assert refusal is not None
    assert refusal.code == "hazard-order"
    assert picture(c.graph) == before


@pytest.mark.parametrize(
    ("moved", "anchor"), [("draw_2", "barrier"), ("free", "read"), ("read", "write"), ("s2", "w2")]
)
def test_nodes_without_conflict_move_freely(moved: str, anchor: str) -> None:
    c = Conflicts()
    assert c.editor.attempt("move", lambda tx: tx.move(getattr(c, moved), before=getattr(c, anchor))) is None
    c.graph.lint()


def test_conflicts_of_nodes_from_earlier_transactions_count_too() -> None:
    c = Conflicts()
    with c.editor.transaction("move, so that hazards are known") as tx:
        tx.move(c.free, before=c.read)
    with c.editor.transaction("write") as tx:
        new = tx.call(ATEN.mul_.Tensor, (c.x, 3), after=c.again)
    refusal = c.editor.attempt("cross", lambda tx: tx.move(c.again, after=new))
    assert refusal is not None
    assert refusal.code == "hazard-order"
    with c.editor.transaction("erase") as tx:
        tx.erase(new)
    assert c.editor.attempt("free again", lambda tx: tx.move(c.again, after=c.draw_1)) is None


def test_conflicting_nodes_may_pass_through_wrong_orders_within_a_transaction() -> None:
    c = Conflicts()
    with c.editor.transaction("both") as tx:
        tx.move(c.draw_1, before=c.s1)
        tx.move(c.draw_2, before=c.s1)
    assert c.draw_1 < c.draw_2


def test_the_given_check_decides(two: Two) -> None:
    seen: list[Changes] = []

    def check(changes: Changes) -> Refusal | None:
        seen.append(changes)
        return Refusal("no-pass", "here") if changes.made else None

    two.editor.check = check
    assert refused(two, lambda tx: tx.call(ATEN.relu.default, (two.x,), before=two.dx)).code == "no-pass"
    assert two.editor.attempt("move", lambda tx: tx.move(two.dy, before=two.dx)) is None
    assert [len(changes.made) for changes in seen] == [1, 0]
    assert seen[1].moved == (two.dy,)

    def broken(changes: Changes) -> None:
        raise ZeroDivisionError

    two.editor.check = broken
    before = picture(two.graph)
    with pytest.raises(ZeroDivisionError):
        two.editor.attempt("x", lambda tx: fuse(two, tx))
    assert picture(two.graph) == before


def test_a_pass_can_refuse_half_way(two: Two) -> None:
    def rewrite(tx: Transaction) -> None:
        fuse(two, tx)
        tx.refuse(Refusal("no-pass", "dx", "not today"))

    assert refused(two, rewrite).detail == "not today"


def test_misuse_is_an_error_and_leaves_no_trace(two: Two) -> None:
    other = Two()
    before = picture(two.graph)
    wrong = [
        (lambda tx: tx.call(ATEN.relu.default, (two.x,)), "exactly one"),
        (lambda tx: tx.call(ATEN.relu.default, (two.x,), before=two.dx, after=two.dx), "exactly one"),
        (lambda tx: tx.call(ATEN.relu.default, (other.x,), before=two.dx), "another graph"),
        (lambda tx: tx.call("relu", (two.x,), before=two.dx), "cannot be called"),
        (lambda tx: tx.call(ATEN.mm.default, (two.x, two.x), before=two.dx), "does not accept"),
        (lambda tx: tx.erase(two.dx), "still used"),
        (lambda tx: tx.erase(two.output), "signature"),
        (lambda tx: tx.move(two.x, before=two.dx), "placeholder"),
        (lambda tx: tx.move([two.dx, two.dy], before=two.dy), "before itself"),
        (lambda tx: two.editor.transaction("inner").__enter__(), "already open"),
    ]
    for rewrite, message in wrong:
        with pytest.raises(EditError, match=message), two.editor.transaction("wrong") as tx:
            rewrite(tx)
        assert picture(two.graph) == before


def test_a_failed_call_spoils_its_transaction(two: Two) -> None:
    def rewrite(tx: Transaction) -> None:
        with pytest.raises(EditError):
            tx.call(ATEN.mm.default, (two.x, two.x), before=two.dx)

    before = picture(two.graph)
    with pytest.raises(EditError, match="cannot be committed"):
        two.editor.attempt("go on", rewrite)
    assert picture(two.graph) == before


def test_a_transaction_is_used_once_and_inside_its_block(two: Two) -> None:
    tx = two.editor.transaction("late")
    with pytest.raises(EditError, match="not open"):
        tx.move(two.dy, before=two.dx)
    with tx:
        pass
    with pytest.raises(EditError, match="not open"):
        tx.move(two.dy, before=two.dx)
    with pytest.raises(EditError, match="used already"), tx:
        pass


# -- taking back ------------------------------------------------------------------------------------------------------


def everything(two: Two, tx: Transaction) -> None:
    """Every kind of edit, erasing a new node and moving an old one twice among them."""
    fuse(two, tx)
    tx.move(two.dy, before=two.dx)
    tx.move(two.dy, after=two.dx)
    gone = tx.call(ATEN.relu.default, (two.dx,), after=two.dx)
    tx.erase(gone)
    tx.set_arguments(two.dx, (two.y, 2))
    tx.annotate(two.dx, note=1)
    tx.revalue(two.dy)


def test_taking_back_leaves_no_trace(two: Two) -> None:
    before = picture(two.graph)
    fail_after(two, everything, KeyboardInterrupt)
    assert picture(two.graph) == before


def test_later_names_are_as_if_nothing_had_happened(two: Two) -> None:
    undisturbed = Two()
    fail_after(two, everything)
    for each in (two, undisturbed):
        with each.editor.transaction("fuse") as tx:
            fuse(each, tx)
    assert str(two.graph) == str(undisturbed.graph)


def test_erased_nodes_come_back_as_themselves(two: Two) -> None:
    nodes: list[Node] = list(two.graph.nodes)
    fail_after(two, everything)
    assert all(a is b for a, b in zip(nodes, two.graph.nodes, strict=True))
    assert two.graph.find_nodes(op="call_function", target=C10D.all_reduce.default) == [two.sx, two.sy]
    two.graph.erase_node(two.output)
    two.graph.erase_node(two.wy)


def test_the_order_of_users_survives_uses_that_come_and_go(two: Two) -> None:
    def rewrite(two: Two, tx: Transaction) -> None:
        tx.replace({two.wx: two.x, two.y: two.x})
        tx.erase([two.wx, two.sx, two.dx])

    before = picture(two.graph)
    fail_after(two, rewrite)
    assert picture(two.graph) == before


def test_a_rejection_survives_pickling() -> None:
    error = EditRejected(Refusal("no-pass", "here"), "why")
    assert pickle.loads(pickle.dumps(error)).refusal == error.refusal
