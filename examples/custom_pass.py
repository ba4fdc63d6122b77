"""A pass of one's own: written, proved against a golden graph, and used in training.

    python examples/custom_pass.py                               the proof
    torchrun --nproc-per-node 2 examples/custom_pass.py          training with it

`@register` makes the pass known in this process. To have it everywhere, on the command line too, let a package name it:

    [project.entry-points."counterpoint.passes"]
    average-in-collective = "custom_pass:AverageInCollective"
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import nn

import counterpoint
from counterpoint.ir import ops
from counterpoint.ir.groups import GroupTable
from counterpoint.ir.reason import Refusal
from counterpoint.ir.text import parse_graph, print_graph
from counterpoint.options import CompileOptions
from counterpoint.passes import Contract, Pass, carrying, origins_of, register
from counterpoint.passes.pipeline import DEFAULT_PIPELINE, Pipeline, run_pipeline


@register
@dataclass(frozen=True, kw_only=True)
class AverageInCollective(Pass):
    """Lets the collective divide: all-reduces of gradients that were divided by the number of ranks become averages.

    Does: takes out the division before an all-reduce with sum, and reduces with avg instead. One operator fewer for
    every gradient.

    Fires when: the divisor is the size of the group, and nothing else uses the quotient.

    Before and after:

        q = div(g, 4); r = all_reduce(q, "sum")
        r = all_reduce(g, "avg")

    Never: changes bits where `bitwise=True` forbids it: dividing after the sum may round otherwise.
    """

    name: ClassVar[str] = "average-in-collective"
    contract: ClassVar[Contract] = Contract()

    def run(self, context):
        """Match, plan, apply, and tell the ledger."""
        matches = [(start, divided(start, context)) for start in context.graph.nodes if is_all_reduce(start)]
        for start, quotient in matches:
            if quotient is None:
                continue  # for other passes to speak about
            origins = origins_of(start)  # asked for now: a rewritten start is gone
            if context.options.bitwise:
                refusal = Refusal("rounding", quotient.name, "the division would come later")
            else:
                rewrite = partial(average, start=start, quotient=quotient)
                refusal = context.editor.attempt(f"average in {start.name}", rewrite)
            if refusal is None:
                context.ledger.lowered(origins, to="avg")
            else:
                context.ledger.left_alone(origins, refusal)


def is_all_reduce(node):
    """Whether the node starts an all-reduce that overwrites nothing."""
    return node.target is torch.ops._c10d_functional.all_reduce.default


def divided(start, context):
    """The quotient that an all-reduce sums, where it could average instead; else None."""
    quotient = ops.argument(start, "input")
    group = ops.argument(start, "group_name")
    fits = (
        ops.argument(start, "reduce_op") == "sum"
        and quotient.target is torch.ops.aten.div.Tensor
        and len(quotient.users) == 1
        and group in context.groups
        and quotient.args[1] == len(context.groups[group])
    )
    return quotient if fits else None


def average(tx, start, quotient):
    """The rewrite, one transaction: it stands as a whole or not at all. The new start carries on the old one's line."""
    arguments = (quotient.args[0], "avg", ops.argument(start, "group_name"))
    made = tx.call(start.target, arguments, before=start, like=start, meta=carrying(start))
    tx.replace({start: made})
    tx.erase([start, quotient])


# ---- the proof: what it does to a graph, to the letter, with the same values on simulated ranks ----

BEFORE = """\
graph
  %g: f32[6] = placeholder
  %h: f32[6] = placeholder
  %q: f32[6] = aten.div.Tensor(%g, 4)
  %a: f32[6] = _c10d_functional.all_reduce(%q, "sum", "0")
  %u: f32[6] = _c10d_functional.wait_tensor(%a)
  %p: f32[6] = aten.div.Tensor(%h, 3)
  %b: f32[6] = _c10d_functional.all_reduce(%p, "sum", "0")
  %v: f32[6] = _c10d_functional.wait_tensor(%b)
  return (%u, %v)
"""

AFTER = """\
graph
  %g: f32[6] = placeholder
  %h: f32[6] = placeholder
  %all_reduce_default: f32[6] = _c10d_functional.all_reduce(%g, "avg", "0")
  %u: f32[6] = _c10d_functional.wait_tensor(%all_reduce_default)
  %p: f32[6] = aten.div.Tensor(%h, 3)
  %b: f32[6] = _c10d_functional.all_reduce(%p, "sum", "0")
  %v: f32[6] = _c10d_functional.wait_tensor(%b)
  return (%u, %v)
"""


def run_on(text, **options):
    """The graph after the pass, and what the ledger says of each collective."""
    graph = parse_graph(text)
    report = run_pipeline(
        graph,
        Pipeline.parse(AverageInCollective.name),
        options=CompileOptions(verify="paranoid", on_error="raise", **options),
        groups=GroupTable({"0": (0, 1, 2, 3)}),
    )
    return print_graph(graph), [str(entry.verdict) for entry in report.ledger]


def prove():
    """It fires where it should, with the same values, and refuses where it should."""
    other = "left-alone: no-pass at b"  # divided by three, which is not the size of the group
    assert run_on(BEFORE) == (AFTER, ["lowered to avg", other])
    assert run_on(BEFORE, bitwise=True) == (BEFORE, ["left-alone: rounding at q", other])
    print("proved: it fires, keeps all values on four simulated ranks, and refuses where bits must not change")


# ---- the training ----


class Classifier(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x):
        return self.layers(x)


def train():
    """A few steps; our pass goes before the default ones, which would have merged the divisions."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = counterpoint.replicate(Classifier())
    passes = f"{AverageInCollective.name},{DEFAULT_PIPELINE}"
    step = torch.compile(model, backend="counterpoint", options={"passes": passes})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(5):
        x = torch.randn(32, 16, generator=data)
        loss = nn.functional.cross_entropy(step(x), x[:, :4].argmax(dim=1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
        for record in counterpoint.reports():
            for report in record.reports:
                for entry in report.ledger:
                    print(f"{entry.facts.origin}: {', then '.join(map(str, entry.history))}")
    dist.destroy_process_group()


if __name__ == "__main__":
    train() if dist.is_torchelastic_launched() else prove()
