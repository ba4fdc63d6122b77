"""Logging levels from the environment, written as in torch's `TORCH_LOGS`.

    COUNTERPOINT_LOGS="passes,+agreement" python train.py

A name alone logs what a user may want to know (info), with `+` everything (debug), with `-` errors only; `all` means
every part. Messages go to standard error, with the rank. All are loggers of the standard library below `counterpoint`,
so whoever configures logging in a program needs none of this, and `TORCH_LOGS="+counterpoint"` works as well.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType

ROOT = "counterpoint"
VARIABLE = "COUNTERPOINT_LOGS"
ALL = "all"
PARTS: Mapping[str, str] = MappingProxyType(
    {
        "agreement": "what ranks compare before a graph runs for the first time",
        "bucketing": "what inductor's doors of bucketing leave alone",
        "cache": "the reports kept beside entries of the FX graph cache",
        "compile": "one line for each compiled graph, and what is in force",
        "faults": "passes of ours that failed, and where their graph was saved",
        "ledger": "the verdict on each collective of each compiled graph",
        "options": "what looks like an option and is none",
        "passes": "each pass of each run: how it ended, what it changed, how long it took",
    }
)
"""The parts that can be named, `counterpoint.passes` and so on."""
LEVELS: Mapping[str, int] = MappingProxyType({"+": logging.DEBUG, "": logging.INFO, "-": logging.ERROR})


class RankFormatter(logging.Formatter):
    """Says which rank speaks, where there are several."""

    def format(self, record: logging.LogRecord) -> str:
        """One message."""
        rank = os.environ.get("RANK")
        return (f"[rank{rank}] " if rank is not None else "") + super().format(record)


def read_levels(text: str) -> tuple[dict[str, int], list[str]]:
    """The level of each logger that the text names, and a complaint for each part of it that means nothing."""
    levels: dict[str, int] = {}
    complaints = []
    for item in filter(None, map(str.strip, text.split(","))):
        sign = item[0] if item[0] in "+-" else ""
        name = item.removeprefix(sign).strip()
        if name == ALL:
            levels[ROOT] = LEVELS[sign]
        elif name in PARTS:
            levels[f"{ROOT}.{name}"] = LEVELS[sign]
        else:
            near = difflib.get_close_matches(name, [*PARTS, ALL], 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join([*PARTS, ALL])}"
            complaints.append(f"{VARIABLE}: nothing is called {name!r}; {hint}")
    return levels, complaints


def configure(text: str) -> None:
    """Set the levels that a text asks for, and write to standard error."""
    root = logging.getLogger(ROOT)
    levels, complaints = read_levels(text)
    if not any(isinstance(handler.formatter, RankFormatter) for handler in root.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(RankFormatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        # Else a program that configures the root logger would have every line twice.
        root.propagate = False
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    for complaint in complaints:
        root.warning("%s", complaint)
