"""Passes: what they are, how a pipeline of them runs, and the ledger of what became of every collective.

One pass a file beside the machinery. To write one: subclass `Pass`, declare options with `counterpoint.options.option`,
edit through `context.editor`, tell `context.ledger`, and `register` it.
"""

from counterpoint.passes.base import Pass, PassContext
from counterpoint.passes.book import carrying, origins_of
from counterpoint.passes.contract import Contract
from counterpoint.passes.ledger import Entry, Ledger, Verdict, VerdictKind
from counterpoint.passes.pipeline import Pipeline, run_pipeline
from counterpoint.passes.registry import Registry, register
from counterpoint.passes.report import PassRecord, PassStatus, PipelineReport

__all__ = [
    "Contract",
    "Entry",
    "Ledger",
    "Pass",
    "PassContext",
    "PassRecord",
    "PassStatus",
    "Pipeline",
    "PipelineReport",
    "Registry",
    "Verdict",
    "VerdictKind",
    "carrying",
    "origins_of",
    "register",
    "run_pipeline",
]
