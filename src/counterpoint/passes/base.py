"""What a pass is: a frozen dataclass with a name, a contract, options as fields, and `run`."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torch.fx import Graph, GraphModule

from counterpoint import options as opt
from counterpoint.errors import PassError
from counterpoint.ir.groups import GroupTable
from counterpoint.options import CompileOptions, fields
from counterpoint.passes.contract import Contract

if TYPE_CHECKING:
    from counterpoint.cost.capabilities import CapabilityTable
    from counterpoint.cost.model import CostModel
    from counterpoint.ir.edit import GraphEditor
    from counterpoint.passes.book import PassPage

KEBAB = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
HEADINGS = ("Does", "Fires when", "Before and after", "Never")
"""What the docstring of every pass tells, in this order."""

P = TypeVar("P", bound="type[Pass]")


@dataclass(frozen=True, kw_only=True)
class PassContext:
    """All that a pass may look at; there is no other state. Nothing here is local to a rank."""

    gm: GraphModule
    editor: GraphEditor
    """The only way to change the graph; counts what it does."""
    options: CompileOptions
    groups: GroupTable
    name: str = "graph"
    """What the graph is called, `forward`."""
    ledger: PassPage
    """Where the pass writes what became of each collective."""
    topology: Any = None
    """What is known of the links; a `LinkTable`."""
    cost_model: CostModel | None = None
    """What things take, the same on all ranks; None where nobody has said anything of the cluster."""
    capabilities: CapabilityTable | None = None
    """What the ranks have found out that they can do with each other; None where there are no ranks to ask."""

    @property
    def graph(self) -> Graph:
        """The graph of the module."""
        return self.gm.graph


@dataclass(frozen=True)
class Pass(ABC):
    """Base of all passes. Subclasses are frozen dataclasses; their fields are made with `counterpoint.options.option`.

    Valid graph in, valid graph out. The docstring of a pass has the headings Does, Fires when, Before and after, Never.
    """

    name: ClassVar[str]
    """Kebab case, verb first."""
    contract: ClassVar[Contract] = Contract()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls) and not KEBAB.fullmatch(cls.name):
            raise PassError(
                f"a pass cannot be called {cls.name!r}", where=cls.__qualname__, next_step="use words-with-hyphens"
            )

    def __post_init__(self) -> None:
        if not is_dataclass(type(self)) or "__dataclass_params__" not in vars(type(self)):
            raise PassError(
                f"{type(self).__qualname__} is a pass but no dataclass of its own, so its options would be lost",
                next_step="decorate it with @dataclass(frozen=True, kw_only=True)",
            )
        fields.normalise(self, f"pass {self.name}")

    @abstractmethod
    def run(self, context: PassContext) -> None:
        """Rewrite the graph of the context through its editor, and tell its ledger."""

    def given(self) -> str:
        """What the pass reads beside its options, such as a file that one of them names: part of what identifies a
        compile. OptionError where it cannot be read."""
        return ""

    @property
    def text(self) -> str:
        """The canonical text form, `bucket-all-gather{cap-mb=25}`; options at their default are left out."""
        inner = opt.fields_text(self)
        return f"{self.name}{{{inner}}}" if inner else self.name

    @classmethod
    def from_text(cls, inner: str) -> Pass:
        """The pass with the options of a text such as `cap-mb=25 mode=concat`."""
        return cls(**opt.fields_from_text(cls, inner, f"pass {cls.name}"))

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(cls) or "").split("\n", 1)[0]

    def __str__(self) -> str:
        return self.text
