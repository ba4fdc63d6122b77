"""Refusals as data: the one table of reason codes and the record that carries one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from counterpoint.errors import CounterpointError


class Reason(NamedTuple):
    """What a reason code means, and the smallest change that usually removes it."""

    meaning: str
    hint: str


REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        "no-wait": Reason(
            "the collective is started and never waited for", "wait for the result, or remove the collective"
        ),
        "several-waits": Reason(
            "one tensor of the result is waited for more than once", "wait once and share the waited tensor"
        ),
        "partly-waited": Reason(
            "some tensors of a coalesced result are never waited for", "wait for every tensor of the result"
        ),
        "result-escapes": Reason(
            "the unwaited result is used by something other than its wait", "use the waited tensor instead"
        ),
        "no-metadata": Reason(
            'a node has no meta["val"]', "propagate fake tensors over the graph before handing it in"
        ),
        "not-a-collective": Reason("the node does not start a collective", "pass a node that starts one"),
        "malformed": Reason("the node lacks an argument that its operator needs", "repair the call"),
        "unknown-operator": Reason(
            "the operator may communicate and is not in the table of collectives",
            "add it to counterpoint/ir/ops.py",
        ),
        "use-before-made": Reason(
            "an operand would be used before it is made",
            "move the operand up, or its user down, in the same transaction",
        ),
        "hazard-order": Reason(
            "two accesses to one buffer, two random draws, or an effect and a barrier would change places",
            "leave their order as it is",
        ),
        "graph-form": Reason(
            "placeholders must come first and the output last", "put the node between the placeholders and the output"
        ),
        "merge-cycle": Reason(
            "merging these collectives would make one of them wait for itself", "leave one of them out of the bucket"
        ),
        "bucket-form": Reason(
            "this form of the collective cannot be merged with others", "use the functional form with a wait"
        ),
        "bucket-full": Reason("the collective, alone or with the next, fills a bucket", "raise the cap of the bucket"),
        "no-partner": Reason(
            "no other collective has the same kind, group, reduction, device and element type",
            "merge over element types with multi-dtype, or leave it",
        ),
        "unknown-size": Reason("the size is not known while compiling", "give the symbol a hint, or a static size"),
        "written-buffer": Reason(
            "the collective overwrites a buffer that is used otherwise", "use the functional form of the collective"
        ),
        "not-a-gradient": Reason(
            "a later collective of the same group needs the result, so it is no final gradient",
            "merge it with bucket-all-reduce",
        ),
        "no-coalesced-form": Reason(
            "there is no coalesced form of the operator, or none for this element type", "use mode functional"
        ),
        "gathered-memory": Reason(
            "gathering it together with others would keep more memory alive than is allowed",
            "raise max-gathered-mb",
        ),
        "rounding": Reason(
            "merging changes the order of summation, and bitwise equality is asked for", "set bitwise to false"
        ),
        "several-results-kept": Reason(
            "two results would become one tensor, and one of them is written or leaves the graph",
            "return a copy, or write into one",
        ),
        "held-too-long": Reason(
            "its result would have to be kept from the last use of the first one to the first use of this one",
            "raise max-held-mb, if the memory is there",
        ),
        "gather-form": Reason(
            "a gather of nothing, of a scalar or over one rank has no parts to multiply", "leave it as it is"
        ),
        "scatter-form": Reason("a reduction of nothing or of a scalar has no parts to send", "leave it as it is"),
        "exchange-form": Reason(
            "the parts that are exchanged cannot be multiplied one by one",
            "exchange equal parts of two dimensions or more, and multiply them with a plain matrix",
        ),
        "pipeline-form": Reason(
            "this form of the collective cannot be pipelined with a matmul",
            "use the functional form of one tensor, with one wait and a group that has a name",
        ),
        "pipeline-reduction": Reason("only sums and averages can be reduced part by part", "use sum or avg"),
        "pieces": Reason(
            "the tensor is cut and joined in another way than a gather or scatter along one dimension does",
            "join all pieces, equally large and in their order, and use them for nothing else",
        ),
        "no-matmul": Reason("no matmul uses the gathered tensor", "none is needed; plain overlap may hide it"),
        "not-elementwise": Reason(
            "an operator between the gather and a matmul cannot be done part by part",
            "apply it before the gather, or only constants to each element",
        ),
        "gathered-operand": Reason(
            "the gathered dimension cannot be cut in this operand of the matmul",
            "gather along a dimension of its rows, or use it as the left operand",
        ),
        "other-operand-gathered": Reason(
            "the matmul's other operand needs the gathered tensor too", "compute it from something else"
        ),
        "result-overwritten": Reason(
            "what the collective brings is overwritten before the matmul reads it", "write into a copy"
        ),
        "matmul-form": Reason(
            "the matmul scales its operands, or adds more than a vector", "use factors of one and a bias of one dim"
        ),
        "scale-form": Reason(
            "the scales of the matmul do not travel with its operand",
            "use one scale for all, or gather the row scales along the same dimension over the same group",
        ),
        "matmul-taken": Reason("the matmul is pipelined with another collective", "none is needed"),
        "product-used": Reason(
            "the product is used for something beside the reduction, so it is needed as a whole",
            "use the reduced result, or compute the other use from something else",
        ),
        "no-product": Reason("what is reduced is no product, nor a sum of products", "reduce the product directly"),
        "unlike-products": Reason(
            "the products of the sum cannot be computed by one operator", "give them one form, and at most one bias"
        ),
        "scattered-product": Reason(
            "the parts for the ranks cannot be cut from the matmul's operands", "scatter along a dimension of its rows"
        ),
        "layout": Reason("the result would stand otherwise in memory", "make the old result contiguous"),
        "too-small": Reason("in pieces it would take longer", "set when=always, or make the tensors larger"),
        "hidden-anyway": Reason(
            "independent compute nearby can hide the collective as it is", "set leave-hidden to false"
        ),
        "nothing-to-hide-behind": Reason(
            "too little compute is independent of the collective to run meanwhile",
            "give the step other work there, a faster link, or a larger share of the memory with max-in-flight-mb",
        ),
        "no-gain": Reason(
            "by what the costs say, no other order and no bucket makes the step shorter",
            "measure the links with counterpoint.calibrate_links, or name the topology, if the costs are wrong",
        ),
        "plan-changed": Reason(
            "the graph is not the one that the plan was made for", "write the plan anew, or leave the option plan out"
        ),
        "memory-cap": Reason("the plan would need more memory than is allowed", "raise max-extra-mb or memory-cap-mb"),
        "not-probed": Reason(
            "nobody has found out what the ranks of the group can do with each other",
            "compile with agreement_s set, on ranks that all come to the compile",
        ),
        "no-other-form": Reason("the library's form of the collective is the only one there is", "none is needed"),
        "other-form-lacking": Reason(
            "every other form of the collective lacks something here", "see what is said of each form"
        ),
        "library-best": Reason(
            "by what the costs say, the library is as quick as any other form",
            "measure the links with counterpoint.calibrate_links, if the costs are wrong",
        ),
        "other-device": Reason(
            "collectives of tensors on this device are left to the library, as the pass is set",
            "ask for lower-collectives with devices=all",
        ),
        "lowered-already": Reason("the collective has been given its form before", "none is needed"),
        "unknown-group": Reason(
            "the ranks of the group are not known while compiling", "name a process group that exists"
        ),
        "no-pass": Reason("no pass of the pipeline handles this collective", "add a pass that does"),
        "pass-failed": Reason("a pass failed and was undone", "look at the pass's error, or leave the pass out"),
        "invalid-graph": Reason(
            "the input graph does not verify, so no pass was run", "repair the graph; the report holds the findings"
        ),
    }
)


@dataclass(frozen=True)
class Refusal:
    """Why something was not done. Stable code, the node in the way, and what would let it succeed."""

    code: str
    """Key into `REASONS`; stable across releases."""
    node: str
    """Name of the node in the way."""
    detail: str = ""
    """What was seen there, with values."""
    hint: str = ""
    """The smallest change that removes the reason; empty means the table's own hint."""

    def __post_init__(self) -> None:
        if self.code not in REASONS:
            raise CounterpointError(
                f"unknown reason code {self.code!r}",
                where=f"refusal at node {self.node}",
                next_step="add the code to REASONS in counterpoint/ir/reason.py",
            )

    def __str__(self) -> str:
        reason = REASONS[self.code]
        seen = f": {self.detail}" if self.detail else ""
        return f"{self.code} at {self.node}: {reason.meaning}{seen} ({self.hint or reason.hint})"
