"""One rewrite of a graph: the edits inside `with editor.transaction("why") as tx:`. See `counterpoint.ir.edit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from torch.fx import Node
from torch.fx.node import map_arg

from counterpoint._torch import is_erased
from counterpoint.errors import EditError
from counterpoint.ir.events import Edit, EditCounts, EditKind, EditRejected
from counterpoint.ir.fake import run_fake, set_value
from counterpoint.ir.legality import Changes
from counterpoint.ir.reason import Refusal
from counterpoint.ir.settle import settled
from counterpoint.ir.tracing import trace_body
from counterpoint.ir.undo import UndoLog

if TYPE_CHECKING:
    from counterpoint.ir.edit import GraphEditor

CARRIED = (
    "stack_trace",
    "nn_module_stack",
    "fwd_nn_module_stack",
    "source_fn_stack",
    "fwd_source_fn_stack",
    "torch_fn",
    "seq_nr",
    "from_node",
    "custom",
    "partitioner_tag",
    "autograd_backward",
)
"""Metadata that says where a node comes from."""


class Transaction:
    """One rewrite. Its methods change the graph at once, and the end of the block decides whether the changes stand."""

    def __init__(self, editor: GraphEditor, why: str) -> None:
        self.editor = editor
        self.graph = editor.graph
        self.why = why
        self._edits: list[Edit] = []
        self._log: UndoLog | None = None
        self._used = False
        self._problem: Exception | None = None
        self._source: Node | None = None
        self._source_meta: dict[str, Any] = {}

    @property
    def counts(self) -> EditCounts:
        """The edits so far; after the block, all of them if it was committed."""
        return EditCounts.of(self._edits)

    # -- making -------------------------------------------------------------------------------------------------------

    def call(
        self,
        operator: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        before: Node | None = None,
        after: Node | None = None,
        like: Node | Sequence[Node] = (),
        meta: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Node:
        """A new call beside another node, with its value computed from those of its arguments.

        Stack trace, module and the like are taken from `like` (the first, of several), `meta` is added to them.
        """
        if not callable(operator):
            raise self._error(f"{operator!r} cannot be called")
        node = self._open().make(operator, tuple(args), kwargs or {}, self._anchor(before, after), name)
        try:
            self._own(node.all_input_nodes)
            value = run_fake(node, self.editor.fake_mode, self.editor.groups)
        except Exception as error:
            # The node is in the graph without a value: even if the caller goes on, this must not be committed.
            self._problem = error
            if isinstance(error, EditError):
                raise
            raise self._error(f"{operator} does not accept these arguments: {error}") from error
        self._finish(node, value, like, meta)
        return node

    def inline(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Node],
        *,
        before: Node | None = None,
        after: Node | None = None,
        like: Node | Sequence[Node] = (),
        meta: Mapping[str, Any] | None = None,
    ) -> tuple[Node, ...]:
        """The calls that a plain function on tensors makes, traced with the values of `inputs`; returns its results."""
        self._own(inputs)
        anchor = self._anchor(before, after)
        body = trace_body(function, inputs, self.editor.fake_mode)
        made: dict[Node, Node] = {}
        given = iter(inputs)
        results: tuple[Node, ...] = ()
        for node in body.graph.nodes:
            if node.op == "placeholder":
                made[node] = next(given)
            elif node.op == "output":
                results = tuple(made[result] for result in nodes_in(node.args))
            else:
                args, kwargs = map_arg((node.args, node.kwargs), made.__getitem__)
                made[node] = self._open().make(node.target, tuple(args), kwargs, anchor, None)
                self._finish(made[node], node.meta["val"], like, meta)
        return results

    # -- changing -----------------------------------------------------------------------------------------------------

    def replace(self, mapping: Mapping[Node, Node], *, but: Iterable[Node] = ()) -> None:
        """Make every use of a key a use of its value, all at once; not in the new nodes themselves, nor in `but`."""
        self._own((*mapping, *mapping.values()))
        spared = {*but, *mapping.values()}
        users = dict.fromkeys(user for old in mapping for user in old.users if user not in spared)
        for user in users:
            args, kwargs = map_arg((user.args, user.kwargs), lambda node: mapping.get(node, node))
            self._open().set_arguments(user, tuple(args), kwargs)
        self._edits += [Edit(EditKind.REPLACED, old, new) for old, new in mapping.items()]

    def replace_input(self, node: Node, old: Node, new: Node) -> None:
        """Make the node use `new` where it used `old`."""
        args, kwargs = map_arg((node.args, node.kwargs), lambda source: new if source is old else source)
        self.set_arguments(node, args, kwargs)

    def set_arguments(
        self, node: Node, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Give the node other arguments; what is left out stays. Its value is not computed again: see `revalue`."""
        self._own((node, *nodes_in((args, kwargs))))
        new_args = node.args if args is None else tuple(args)
        self._open().set_arguments(node, new_args, node.kwargs if kwargs is None else kwargs)
        self._edits.append(Edit(EditKind.ARGUMENTS, node))

    def revalue(self, node: Node) -> None:
        """Compute the node's value again from those of its arguments."""
        self._own((node,))
        value = run_fake(node, self.editor.fake_mode, self.editor.groups)
        self._open().set_meta(node, node.meta.copy())
        set_value(node, value)

    def annotate(self, node: Node, **meta: Any) -> None:
        """Add to the node's metadata."""
        self._own((node,))
        self._open().set_meta(node, {**node.meta, **meta})
        self._source = None

    # -- order --------------------------------------------------------------------------------------------------------

    def move(self, nodes: Node | Iterable[Node], *, before: Node | None = None, after: Node | None = None) -> None:
        """Put the nodes beside another one, together, in the order in which they stand."""
        group = sorted({nodes} if isinstance(nodes, Node) else set(nodes))
        self._own(group)
        anchor = self._anchor(before, after, group)
        if fixed := next((node for node in group if node.op in ("placeholder", "output")), None):
            raise self._error(f"{fixed.name} is a {fixed.op} and cannot be moved")
        self._place(group, anchor)

    def settle(self) -> None:
        """Move as little as is needed for every operand to stand before its use, conflicts keeping their order."""
        log = self._open()
        order = settled(Changes.of(log, self.why), self.editor.hazards())
        if isinstance(order, Refusal):
            raise EditRejected(order, self.why)
        if order:
            self._place(order, max(order).next)

    # -- ending -------------------------------------------------------------------------------------------------------

    def erase(self, nodes: Node | Iterable[Node]) -> None:
        """Take nodes out, users before what they use. A node that others still use cannot be erased."""
        log = self._open()
        for node in (nodes,) if isinstance(nodes, Node) else sorted(set(nodes), reverse=True):
            self._own((node,))
            if node.users:
                raise self._error(f"{node.name} is still used by {', '.join(user.name for user in node.users)}")
            if node.op in ("placeholder", "output"):
                raise self._error(f"{node.name} is a {node.op}: without it the graph's signature would change")
            log.erase(node)
            self._edits.append(Edit(EditKind.ERASED, node))

    def refuse(self, refusal: Refusal) -> NoReturn:
        """End the transaction here and take it back."""
        raise EditRejected(refusal, self.why)

    def __enter__(self) -> Transaction:
        if self._used:
            raise self._error("the transaction has been used already", "open another one")
        self._log, self._used = UndoLog(self.graph), True
        self.editor.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        log, refusal = self._open(), None
        try:
            if kind is None:
                refusal = self._judge(log)
        except BaseException:
            self._take_back(log)
            raise
        if kind is not None or refusal is not None:
            self._take_back(log)
        if refusal is not None:
            raise EditRejected(refusal, self.why)
        if kind is None:
            log.keep()
            self._log = None
            self.editor.committed(self._edits)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _judge(self, log: UndoLog) -> Refusal | None:
        if self._problem is not None:
            raise self._error("a call of this transaction has failed, so it cannot be committed") from self._problem
        return self.editor.judge(Changes.of(log, self.why))

    def _take_back(self, log: UndoLog) -> None:
        log.take_back()
        self._log, self._edits = None, []
        self.editor.taken_back()

    def _open(self) -> UndoLog:
        if self._log is None:
            raise self._error("the transaction is not open", "edit inside its `with` block")
        return self._log

    def _place(self, nodes: Sequence[Node], anchor: Node) -> None:
        """Put the nodes before the anchor, in this order. Those that stand right already do not count as moved."""
        log = self._open()
        # Moves are judged against the order of accesses before the first of them.
        self.editor.hazards()
        for node in reversed(nodes):
            if node.next is not anchor:
                log.move(node, anchor)
                self._edits.append(Edit(EditKind.MOVED, node))
            anchor = node

    def _finish(self, node: Node, value: Any, like: Node | Sequence[Node], meta: Mapping[str, Any] | None) -> None:
        sources = (like,) if isinstance(like, Node) else like
        if sources:
            # The first stands for all: a list of all origins would grow with every merge of merged nodes.
            node.meta.update(self._carried(sources[0]))
        set_value(node, value)
        node.meta.update(meta or {})
        self._edits.append(Edit(EditKind.INSERTED, node))

    def _carried(self, source: Node) -> dict[str, Any]:
        """What is carried over from a node, which most calls in a row have in common."""
        if self._source is not source:
            self._source = source
            self._source_meta = {key: source.meta[key] for key in CARRIED if key in source.meta}
        return self._source_meta

    def _anchor(self, before: Node | None, after: Node | None, group: Sequence[Node] = ()) -> Node:
        """The node before which to place things."""
        given = before if before is not None else after
        if given is None or (before is not None and after is not None):
            raise self._error("the place is not clear", "give exactly one of before= and after=")
        self._own((given,))
        inside = set(group)
        if before is not None:
            if before in inside:
                raise self._error(f"{before.name} cannot be put before itself")
            return before
        anchor = given.next
        while anchor in inside:
            anchor = anchor.next
        return anchor

    def _own(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.graph is not self.graph:
                raise self._error(f"{node.name} belongs to another graph")
            if is_erased(node):
                raise self._error(f"{node.name} has been erased")

    def _error(self, what: str, next_step: str | None = None) -> EditError:
        return EditError(what, where=self.why, next_step=next_step)


def nodes_in(value: Any) -> list[Node]:
    """The nodes inside a nest of arguments, in order."""
    found: list[Node] = []
    map_arg(value, found.append)
    return found
