"""Every error that Counterpoint raises. Each docstring is the help page of its error.

An error says what is wrong, where (pass, node, file, option) and what to do next; nothing here prints or logs.
"""

from __future__ import annotations


class CounterpointError(Exception):
    """Base of all errors of this package: catch this one to catch them all.

    The message reads `what`, then `where` in brackets, then the next step on a line of its own.
    """

    def __init__(self, what: str, *, where: str | None = None, next_step: str | None = None) -> None:
        self.what = what
        self.where = where
        self.next_step = next_step
        super().__init__(what, where, next_step)

    def __str__(self) -> str:
        text = self.what if self.where is None else f"{self.what} [{self.where}]"
        return text if self.next_step is None else f"{text}\n  next step: {self.next_step}"

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only fields do not survive the default pickling, and errors cross process borders.
        return _rebuild, (type(self), self.what, self.where, self.next_step)


def _rebuild(kind: type[CounterpointError], what: str, where: str | None, next_step: str | None) -> CounterpointError:
    return kind(what, where=where, next_step=next_step)


class GraphError(CounterpointError):
    """The graph handed in cannot be read: metadata is missing, an operator lacks an argument, an edge is broken.

    Usual cause: a graph that was built by hand or edited without its `meta["val"]`. Run fake-tensor propagation
    over it, or build it with `counterpoint.ir.GraphBuilder`.
    """


class GroupError(CounterpointError):
    """A process group is missing, unknown, or does not contain this rank.

    Usual cause: `init_process_group` was not called, or a graph from another job names a group unknown here.
    """


class VerifyError(CounterpointError):
    """The verifier found that a graph is not a valid distributed program, or no longer does what it did.

    The message lists each finding with the neighbouring nodes. A rewrite that fails verification is rolled back; when
    this error reaches a user, the input graph itself was invalid or a pass has a bug worth reporting.
    """


class StaleViewError(CounterpointError):
    """A `GraphView` was used after its graph had changed.

    A view is a snapshot: build a new one after editing, `GraphView.of(graph)`.
    """


class EditError(CounterpointError):
    """An edit cannot be made: outside a transaction, on a node of another graph, or in an order that makes no sense."""


class OptionError(CounterpointError):
    """An option is unknown, has the wrong type, or lies outside its bounds; the message names near ones."""


class PassError(CounterpointError):
    """A pipeline text does not parse, or names a pass that does not exist. The message names near ones."""


class ContractError(CounterpointError):
    """The passes of a pipeline do not fit together: one requires what no earlier one provides, or two conflict."""


class CaptureError(CounterpointError):
    """A model could not be captured as a graph, or a wrapper was applied to a module that it cannot handle."""


class GraphFileError(CounterpointError):
    """A graph file is truncated, damaged, not a graph file, or from another version of the format."""


class EvaluationError(CounterpointError):
    """A graph could not be evaluated on simulated ranks: an operator without reference semantics, or unequal ranks."""


class CompileError(CounterpointError):
    """The backend was asked for something it cannot compile, such as an unknown code generator."""


class SharedMemoryError(CounterpointError):
    """Ranks of one host could not share memory, or could not go on in it.

    Before the first collective: the ranks are on several hosts, a compiler is missing, or one rank may not open the
    memory of another. Later: a peer ended, did not come within the group's timeout, or called another collective. All
    ranks of the group are told, and the group's shared memory cannot be used any more.
    """


class UnsupportedTorchError(CounterpointError):
    """The installed torch is older than the oldest supported version, or lacks something that this feature needs."""


class OperatorError(CounterpointError):
    """An operator of this package was called with arguments that do not fit together, or that it does not serve.

    Passes emit only calls that fit. Who calls an operator directly finds in the message which argument is meant.
    """


class CommunicationError(CounterpointError):
    """Communication with another rank failed or took longer than the group's timeout.

    Usual cause: another process of the group has ended or is stuck. Look at its output; the group cannot be
    used any more. When it happens in a compiled graph, the message names the collective's node, the bucket, the
    user's lines, and the ranks that are missing or stand in another collective.
    """


class AgreementError(CounterpointError):
    """Ranks were about to run different collectives, or one of them did not come; raised instead of a hang.

    Before a compiled graph runs for the first time, the ranks of each of its groups compare their collectives, options
    and versions over the store. The message names the rank, the collective and the node. `agreement_s` sets how long a
    rank waits for the others; `none` switches the comparison off.
    """


class RequirementError(CounterpointError):
    """A compile did not do what the options require of it: `require_bucketed`, `require_pipelined`, `max_exposed_us`.

    The message names the collectives and the reason of each. `counterpoint explain` shows the whole ledger.
    """
