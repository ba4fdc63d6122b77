"""The options of a compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from counterpoint.options import fields, text
from counterpoint.options.fields import option


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """What a user can ask of a compile: through `options=` of `torch.compile`, the environment, or pyproject.toml."""

    codegen: Literal["inductor", "eager"] = option(
        "inductor", help="what makes code of the graph: torch's inductor, or plain calls (needs no C++ compiler)"
    )
    passes: str | None = option(None, help="the pipeline of passes as text; none means the default pipeline")
    verify: Literal["off", "structural", "full", "paranoid"] = option(
        "structural",
        help="how the graph is checked after every pass; full also recomputes metadata, "
        "paranoid also compares values on simulated ranks",
    )
    lower: bool = option(
        True, help="let the pass lower-collectives choose other forms than the library's, where the pipeline has it"
    )
    bitwise: bool = option(False, help="forbid rewrites that may change the order in which numbers are summed")
    on_error: Literal["continue", "raise"] = option(
        "continue", help="after a pass has failed and was undone: go on without it, or raise its error"
    )
    latency_us: float | None = option(
        None,
        help="what a small collective takes, to size buckets by; otherwise as measured, else typical of the device",
        unit="us",
        minimum=0.0,
    )
    bandwidth_gbps: float | None = option(
        None, help="what a rank can send, to size buckets by; otherwise likewise", unit="Gbit/s", minimum=0.001
    )
    topology: str | None = option(
        None, help="the cluster that costs are reckoned for: a preset such as h200x8-ib400, or the path of a TOML file"
    )
    cost_table: str | None = option(
        None, help="a file of measured times, written by counterpoint calibrate; they go before every formula"
    )
    require_bucketed: bool = option(
        False, help="fail unless every collective that could share a bucket does, or is hidden or pipelined"
    )
    require_pipelined: bool = option(
        False, help="fail unless every gather and scatter beside a matmul is pipelined with it, where that pays"
    )
    max_exposed_us: float | None = option(
        None, help="fail when more communication of a graph is predicted to be exposed", unit="us", minimum=0.0
    )
    agreement_s: float | None = option(
        600.0,
        help="how long the ranks wait for each other to compare a graph before its first run; none does not compare",
        unit="s",
        minimum=0.1,
    )

    def __post_init__(self) -> None:
        fields.normalise(self, "CompileOptions")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str = "options") -> CompileOptions:
        """Options from values by name; OptionError for an unknown name, a wrong type or a value out of bounds."""
        return fields.from_mapping(cls, values, source)

    @classmethod
    def parse(cls, written: str, source: str = "options") -> CompileOptions:
        """Options from their text form."""
        return cls.from_mapping(text.fields_from_text(cls, written, source), source)

    def text(self, *, defaults: bool = False) -> str:
        """The canonical text form, `codegen=eager verify=full`; options at their default only when asked."""
        return text.fields_text(self, defaults=defaults)
