"""The documentation pages that the code writes: passes, options and errors, from what they say of themselves.

Each `..._page()` returns Markdown; `on_files`, a hook of mkdocs, hands them to the site that is being built.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

HEADINGS = ("Does", "Fires when", "Before and after", "Never")


def passes_page() -> str:
    """One section a pass: name, options, and the four headings of its docstring."""
    from counterpoint.passes.registry import REGISTRY

    lines = ["# Passes", "", "A pipeline is text: names of passes with their options, separated by commas.", ""]
    lines += ["In that text an option is written with hyphens for underscores.", ""]
    for cls in REGISTRY:
        lines += [f"## `{cls.name}`", "", _as_markdown(inspect.getdoc(cls) or ""), "", *_options(cls), ""]
    return "\n".join(lines)


def options_page() -> str:
    """The options of a compile."""
    from counterpoint.options import CompileOptions

    lines = ["# Options", "", '`torch.compile(model, backend="counterpoint", options={"verify": "full"})`', ""]
    return "\n".join([*lines, *_options(CompileOptions), ""])


def errors_page() -> str:
    """One section an error, then the table of the reasons why a collective was left alone."""
    from counterpoint import errors
    from counterpoint.ir.reason import REASONS

    kinds = [value for value in vars(errors).values() if _is_error(value, errors.CounterpointError)]
    lines = ["# Errors and reasons", "", "Every error names the thing, the place and the next step.", ""]
    for kind in kinds:
        lines += [f"## `{kind.__name__}`", "", inspect.getdoc(kind) or "", ""]
    lines += ["## Reason codes", "", "A refusal is not an error: it says why something was left as it is.", ""]
    lines += ["| code | meaning | what usually helps |", "|---|---|---|"]
    lines += [f"| `{code}` | {_cell(reason.meaning)} | {_cell(reason.hint)} |" for code, reason in REASONS.items()]
    return "\n".join([*lines, ""])


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs with the files of `docs/`: adds the pages above."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    return files


def _is_error(value: object, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base)


def _as_markdown(docstring: str) -> str:
    """Headings of a pass's docstring in bold; indented graphs stay code by Markdown's own rule."""
    names = "|".join(HEADINGS)
    return re.sub(rf"^({names}):[ \t]*", r"\n**\1.** ", docstring, flags=re.MULTILINE)


def _options(cls: type) -> Iterable[str]:
    from counterpoint.options import described

    for info in described(cls).values():
        yield f"- `{info.name}`, default `{info.default!r}`: {info.help}. {info.expects.capitalize()}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES = {"passes.md": passes_page, "options.md": options_page, "errors.md": errors_page}
