"""The documentation pages that the code writes: passes, options, reasons, errors, from what they say of themselves.

Each `..._page()` returns Markdown; `on_files`, a hook of mkdocs, hands them to the site that is being built. Pages of
measures get into the navigation by `on_config`, and the benchmarks onto the first of them by `on_page_markdown`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HEADINGS = ("Does", "Fires when", "Before and after", "Never")
MEASURES = "measures/index.md"


def passes_page() -> str:
    """One section a pass: name, options, and the four headings of its docstring."""
    from counterpoint.passes.pipeline import DEFAULT_PIPELINE, INFORMED_PIPELINE
    from counterpoint.passes.registry import REGISTRY

    lines = ["# Passes", "", "A pipeline is text: names of passes with their options, separated by commas.", ""]
    lines += ["In that text an option is written with hyphens for underscores. The default pipeline:", ""]
    lines += ["```text", DEFAULT_PIPELINE.replace(",", ",\n"), "```", ""]
    lines += ["And where the option `topology` or `cost_table` tells what things take:", ""]
    lines += ["```text", INFORMED_PIPELINE.replace(",", ",\n"), "```", ""]
    for cls in REGISTRY:
        lines += [f"## `{cls.name}`", "", _as_markdown(inspect.getdoc(cls) or ""), "", *_options(cls), ""]
    return "\n".join(lines)


def options_page() -> str:
    """The options of a compile."""
    from counterpoint.options import CompileOptions

    lines = ["# Options", "", '`torch.compile(model, backend="counterpoint", options={"verify": "full"})`', ""]
    lines += [
        "Settings of `torch._inductor.config` may stand beside them. Each option can also be an environment variable,"
    ]
    lines += ["`COUNTERPOINT_VERIFY=full`, or stand in the table `[tool.counterpoint]` of `pyproject.toml`.", ""]
    return "\n".join([*lines, *_options(CompileOptions), ""])


def errors_page() -> str:
    """One section an error, then the table of the reasons why a collective was left alone."""
    from counterpoint import errors
    from counterpoint.ir.reason import REASONS

    kinds = [value for value in vars(errors).values() if _is_error(value, errors.CounterpointError)]
    lines = ["# Errors", "", "Every error names the thing, the place and the next step.", ""]
    for kind in kinds:
        lines += [f"## `{kind.__name__}`", "", inspect.getdoc(kind) or "", ""]
    lines += ["## Reason codes", "", "A refusal is not an error: it says why something was left as it is, see", ""]
    lines += ["[Reasons, one by one](reasons.md).", ""]
    lines += ["| code | meaning | what usually helps |", "|---|---|---|"]
    lines += [f"| `{code}` | {_cell(reason.meaning)} | {_cell(reason.hint)} |" for code, reason in REASONS.items()]
    return "\n".join([*lines, ""])


# ---- reasons ---------------------------------------------------------------------------------------------------------

THEMES: Mapping[str, tuple[str, ...]] = {
    "How the collective is used": (
        "no-wait", "several-waits", "partly-waited", "result-escapes", "written-buffer", "bucket-form", "unknown-size",
    ),
    "Sharing a bucket": (
        "no-partner", "bucket-full", "merge-cycle", "not-a-gradient", "no-coalesced-form", "gathered-memory",
    ),
    "Being one with its twin": ("several-results-kept", "held-too-long"),
    "Running in pieces with a matmul": (
        "no-matmul", "no-product", "too-small", "hidden-anyway", "pipeline-form", "pipeline-reduction", "gather-form",
        "scatter-form", "pieces", "not-elementwise", "gathered-operand", "other-operand-gathered",
        "result-overwritten", "matmul-form",
        "scale-form", "exchange-form", "matmul-taken", "product-used", "unlike-products", "scattered-product", "layout",
    ),
    "Giving it another form": (
        "not-probed", "no-other-form", "other-form-lacking", "library-best", "lowered-already", "other-device",
        "unknown-group",
    ),
    "Hiding it": ("nothing-to-hide-behind", "no-gain", "memory-cap", "plan-changed"),
    "What would have changed results or order": ("rounding", "hazard-order", "use-before-made", "graph-form"),
    "The graph or the pipeline": (
        "no-pass", "pass-failed", "invalid-graph", "no-metadata", "malformed", "unknown-operator", "not-a-collective",
    ),
}  # fmt: skip
OTHERS = "Others"


def reasons_page() -> str:
    """One section a reason code, by theme, with the smallest golden case whose verdict it is."""
    from counterpoint.ir.reason import REASONS

    shown = cases_by_reason(ROOT / "tests/golden/cases")
    lines = [
        "# Reasons, one by one",
        "",
        "Why a collective was left as it is: the codes that ledgers give, by theme. A code is",
    ]
    lines += ["stable across releases. Graphs are cases of the tests; to read them see [Concepts](concepts.md).", ""]
    for theme, codes in _themes(REASONS).items():
        lines += [f"## {theme}", ""]
        for code in codes:
            reason = REASONS[code]
            lines += [f"### `{code}`", "", f"{_sentence(reason.meaning)}", "", f"*What helps:* {reason.hint}.", ""]
            lines += shown.get(code, [])
    return "\n".join(lines)


def _themes(codes: Iterable[str]) -> dict[str, list[str]]:
    """Every code under one theme, those that nobody has sorted in yet under the last."""
    theme_of = {code: theme for theme, members in THEMES.items() for code in members}
    found: dict[str, list[str]] = {theme: [] for theme in (*THEMES, OTHERS)}
    for code in codes:
        found[theme_of.get(code, OTHERS)].append(code)
    return {theme: members for theme, members in found.items() if members}


def cases_by_reason(folder: Path) -> dict[str, list[str]]:
    """Reason code -> the lines of an example: claim, pipeline and graph of the shortest case with that verdict."""
    found: dict[str, tuple[str, list[str]]] = {}
    for path in sorted(folder.rglob("*.txt")):
        text = path.read_text(encoding="utf-8")
        for code in dict.fromkeys(re.findall(r"^\S+: left-alone: ([\w-]+)", text, re.MULTILINE)):
            if code not in found or len(text) < len(found[code][0]):
                found[code] = text, _example(text)
    return {code: lines for code, (_, lines) in found.items()}


def _example(case: str) -> list[str]:
    claim = " ".join(re.findall(r"^# (.*)$", case, re.MULTILINE))
    graph = case.partition("== before ==\n")[2].partition("== after ==")[0].strip("\n")
    verdicts = case.partition("== verdicts ==\n")[2].partition("\n\n")[0].strip("\n")
    passes = "".join(re.findall(r"^passes: (.*)$", case, re.MULTILINE))
    return [f"For example: {claim}", "", "```text", f"# {passes}", graph, "", verdicts, "```", ""]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


# ---- hooks of mkdocs -------------------------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Called by mkdocs with its settings: every page of measures that is there stands behind their first page."""
    pages = sorted(path for path in (ROOT / "docs/measures").glob("*.md") if path.name != "index.md")
    entries = [{"Overview": MEASURES}, *({_title(path): f"measures/{path.name}"} for path in pages)]
    config.nav = _replaced(config.nav, entries)
    return config


def _replaced(nav: list[Any], entries: list[Any]) -> list[Any]:
    """The navigation, the list of measures in place of their first page."""
    changed: list[Any] = []
    for item in nav:
        ((name, what),) = item.items()
        if what == MEASURES:
            changed.append({name: entries})
        else:
            changed.append({name: _replaced(what, entries) if isinstance(what, list) else what})
    return changed


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs with the files of `docs/`: adds the pages above."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with each page: lists pages and benchmarks on the first page of measures."""
    return f"{markdown}\n{measures_list()}" if page.file.src_uri == MEASURES else markdown


def measures_list() -> str:
    """The pages of measures, and the benchmarks with the first line of what each says of itself."""
    pages = sorted(path for path in (ROOT / "docs/measures").glob("*.md") if path.name != "index.md")
    lines = ["## Pages", "", *(f"- [{_title(path)}]({path.name})" for path in pages), ""] if pages else []
    lines += ["## Benchmarks", "", "| script | compares |", "|---|---|"]
    for path in sorted((ROOT / "benchmarks").glob("bench_*.py")):
        said = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
        lines.append(f"| `{path.name}` | {_cell(' '.join(said.split()))} |")
    return "\n".join([*lines, ""])


def _title(path: Path) -> str:
    heading = re.search(r"^# (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return heading[1] if heading else path.stem.replace("_", " ")


# ---- what they share -------------------------------------------------------------------------------------------------


def _is_error(value: object, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base)


def _as_markdown(docstring: str) -> str:
    """Headings of a pass's docstring in bold; indented graphs stay code by Markdown's own rule."""
    names = "|".join(HEADINGS)
    return re.sub(rf"^({names}):[ \t]*", r"\n**\1.** ", docstring, flags=re.MULTILINE)


def _options(cls: type) -> Iterator[str]:
    from counterpoint.options import described

    for info in described(cls).values():
        yield f"- `{info.name}`, default `{info.default!r}`: {info.help}. {info.expects.capitalize()}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES = {"passes.md": passes_page, "options.md": options_page, "errors.md": errors_page, "reasons.md": reasons_page}
