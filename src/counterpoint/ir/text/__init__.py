"""The text form of a graph: stable, readable in a diff, and pleasant to write by hand.

    graph
      symbol s0 = 16
      %x: f32[s0, 128] = placeholder
      %w: f32[128, 64] = placeholder
      %gather: f32[2*s0, 128] = _c10d_functional.all_gather_into_tensor(%x, 2, "0")
      %wait: f32[2*s0, 128] = _c10d_functional.wait_tensor(%gather)
      %t: f32[64, 128]{1, 64} = aten.t(%w)
      %mm: f32[2*s0, 64] = aten.mm(%wait, %w)
      return (%mm, %t)

Reading a text runs nothing in it. Operators are looked up in torch's registry, Python functions in a fixed table,
shape expressions have a grammar of their own. `print_graph(parse_graph(text)) == text` for every printed text.

Each tensor gets a storage of its own, also where one node is a view of another: that two nodes share memory is read
from the operators' schemas, never from the values. A value printed as `?` is absent, and stays absent.
"""

from counterpoint.ir.text.parser import parse_graph
from counterpoint.ir.text.printer import constants_of, print_graph
from counterpoint.ir.text.values import GroupName, Opaque

__all__ = ["GroupName", "Opaque", "constants_of", "parse_graph", "print_graph"]
