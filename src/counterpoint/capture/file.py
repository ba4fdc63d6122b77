"""Graph files: captured graphs as one text that a person can read, and that loads anywhere without running anything.

    counterpoint-graphs 1
    torch: 2.13.0

    == graph ==
    name: "block"
    role: forward
    stage: aot
    world-size: 8
    rank: 0
    group "0": 0..7

    graph
      %x: f32[64, 128] = placeholder
      return (%x,)

    == data 0a1b... 4096 ==
    (base64 of the compressed bytes of a large constant)

    == end 7f3c... ==

The last line holds the checksum of everything above. Whoever edits a file by hand writes `== end ==` instead.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx

from counterpoint.capture.graph import CapturedGraph
from counterpoint.capture.ranks import ranks_of, ranks_text
from counterpoint.errors import CaptureError, GraphFileError
from counterpoint.ir.text import constants_of, parse_graph, print_graph

FORMAT = 1
_MAGIC = "counterpoint-graphs"
_COLUMNS = 100
_SECTION = re.compile(r"== (graph|data|end)((?: \S+)*) ==")
_FIELD = re.compile(r'([a-z-]+)(?: ("(?:[^"\\]|\\.)*"))?: (.*)')


def save_graph(path: str | os.PathLike[str], captured: CapturedGraph | Sequence[CapturedGraph]) -> None:
    """Write graphs to one file. The same graphs give the same bytes; a reader never sees half a file."""
    graphs = [captured] if isinstance(captured, CapturedGraph) else list(captured)
    if not graphs:
        raise CaptureError("there is no graph to save", where=str(path), next_step="capture one first")
    target = Path(path)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.write_bytes(graphs_text(graphs).encode("utf-8", "surrogatepass"))
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)


def load_graph(path: str | os.PathLike[str]) -> CapturedGraph:
    """Read a file that holds one graph."""
    graphs = load_graphs(path)
    if len(graphs) != 1:
        names = ", ".join(f"{graph.name} ({graph.role})" for graph in graphs)
        raise GraphFileError(
            f"the file holds {len(graphs)} graphs: {names}", where=str(path), next_step="read it with `load_graphs`"
        )
    return graphs[0]


def load_graphs(path: str | os.PathLike[str]) -> tuple[CapturedGraph, ...]:
    """Read all graphs of a file."""
    try:
        text = Path(path).read_bytes().decode("utf-8", "surrogatepass")
    except OSError as problem:
        raise GraphFileError(
            f"the file cannot be read: {problem.strerror}", where=str(path), next_step="check the path"
        ) from problem
    except UnicodeDecodeError as problem:
        raise _not_a_graph_file(str(path)) from problem
    return graphs_of(text, source=str(path))


def graphs_text(graphs: Sequence[CapturedGraph]) -> str:
    """The text of a graph file."""
    versions = sorted({graph.torch_version for graph in graphs})
    lines = [f"{_MAGIC} {FORMAT}", f"torch: {', '.join(versions)}", ""]
    constants: dict[str, bytes] = {}
    for graph in graphs:
        constants |= constants_of(graph.gm)
        lines += ["== graph ==", *_header(graph), "", print_graph(graph.gm, locations=True, notes=True)]
    for name in sorted(constants):
        packed = base64.b64encode(zlib.compress(constants[name], 6)).decode()
        lines.append(f"== data {name} {len(constants[name])} ==")
        lines += [packed[i : i + _COLUMNS] for i in range(0, len(packed), _COLUMNS)] + [""]
    body = "\n".join(lines) + "\n"
    return f"{body}== end {_checksum(body)} ==\n"


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _header(graph: CapturedGraph) -> list[str]:
    lines = [f"name: {json.dumps(graph.name)}", f"role: {graph.role}", f"stage: {graph.stage}"]
    lines += [f"world-size: {graph.world_size}", f"rank: {graph.rank}", f"torch: {graph.torch_version}"]
    return lines + [f"group {json.dumps(name)}: {ranks_text(ranks)}" for name, ranks in graph.groups.items()]


class _Section(NamedTuple):
    kind: str
    words: list[str]
    first_line: int
    lines: list[str]


def graphs_of(text: str, *, source: str = "graph file") -> tuple[CapturedGraph, ...]:
    """The graphs of the text of a graph file."""
    text = text.replace("\r\n", "\n")
    _check_version(text, source)
    sections = list(_sections(text))
    if not sections or sections[-1].kind != "end":
        raise GraphFileError(
            "the file is truncated: its last line `== end ... ==` is missing",
            where=source,
            next_step="copy or save the file again",
        )
    _check_sum(text, sections[-1], source)
    constants = dict(_constant(section, source) for section in sections if section.kind == "data")
    return tuple(_graph(section, constants, source) for section in sections if section.kind == "graph")


def _not_a_graph_file(source: str) -> GraphFileError:
    return GraphFileError(
        f"not a graph file: it does not begin with `{_MAGIC}`",
        where=source,
        next_step="name a file that `save_graph` wrote",
    )


def _check_version(text: str, source: str) -> None:
    magic, _, version = text.partition("\n")[0].partition(" ")
    if magic != _MAGIC:
        raise _not_a_graph_file(source)
    if version.strip() != str(FORMAT):
        written = _FIELD.search(text.partition("\n")[2].partition("\n")[0])
        by = f" (written with torch {written[3]})" if written else ""
        raise GraphFileError(
            f"the file has format {version.strip() or '(none)'}{by}; this version reads format {FORMAT}",
            where=f"{source}, line 1",
            next_step="read it with the version that wrote it, or capture the graph again with this one",
        )


def _sections(text: str) -> Iterator[_Section]:
    current: _Section | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        head = _SECTION.fullmatch(line)
        if head is None:
            if current is not None:
                current.lines.append(line)
            continue
        if current is not None:
            yield current
        current = _Section(head[1], head[2].split(), number + 1, [])
    if current is not None:
        yield current


def _check_sum(text: str, end: _Section, source: str) -> None:
    if not end.words:
        return
    body = text[: text.rindex("\n== end ") + 1]
    if _checksum(body) != end.words[0]:
        raise GraphFileError(
            "the checksum does not match: the file was damaged or edited",
            where=f"{source}, line {end.first_line - 1}",
            next_step="copy the file again; after an edit by hand, make the last line `== end ==`",
        )


def _constant(section: _Section, source: str) -> tuple[str, bytes]:
    where = f"{source}, line {section.first_line - 1}"
    try:
        name, size = section.words[0], int(section.words[1])
        unpack = zlib.decompressobj()
        # One byte more than promised is enough to notice that there is more.
        data = unpack.decompress(base64.b64decode("".join(section.lines), validate=True), size + 1)
    except (IndexError, ValueError, zlib.error) as problem:
        raise GraphFileError(
            f"the data of a constant cannot be read: {problem}", where=where, next_step="copy the file again"
        ) from problem
    if len(data) != size or hashlib.sha256(data).hexdigest() != name:
        raise GraphFileError(
            "the data of a constant does not match its checksum", where=where, next_step="copy the file again"
        )
    return name, data


def _graph(section: _Section, constants: dict[str, bytes], source: str) -> CapturedGraph:
    blank = section.lines.index("") if "" in section.lines else len(section.lines)
    fields, groups = _fields(section, blank, source)
    gm = _graph_module(section, blank, constants, fields.get("torch", torch.__version__), source)
    try:
        return CapturedGraph(
            gm,
            name=json.loads(fields["name"]),
            role=fields["role"],
            stage=fields["stage"],
            world_size=int(fields["world-size"]),
            rank=int(fields["rank"]),
            groups=groups,
            torch_version=fields.get("torch", torch.__version__),
        )
    except (KeyError, ValueError, CaptureError) as problem:
        what = f"the field {problem} is missing" if isinstance(problem, KeyError) else str(problem)
        raise GraphFileError(
            f"the header of a graph cannot be read: {what}",
            where=f"{source}, line {section.first_line}",
            next_step="a header has the fields name (quoted), role, stage, world-size, rank and groups",
        ) from problem


def _graph_module(
    section: _Section, blank: int, constants: dict[str, bytes], torch_version: str, source: str
) -> fx.GraphModule:
    text, line = "\n".join(section.lines[blank:]), section.first_line + blank
    try:
        return parse_graph(text, constants=constants, first_line=line, source=source)
    except GraphFileError as problem:
        if torch_version == torch.__version__:
            raise
        versions = f"the graph is from torch {torch_version} and this is torch {torch.__version__}"
        raise GraphFileError(
            problem.what, where=problem.where, next_step=f"{problem.next_step}; {versions}"
        ) from problem


def _fields(section: _Section, blank: int, source: str) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    fields: dict[str, Any] = {}
    groups: dict[str, tuple[int, ...]] = {}
    for number, line in enumerate(section.lines[:blank], start=section.first_line):
        found = _FIELD.fullmatch(line)
        ranks = ranks_of(found[3]) if found is not None and found[1] == "group" else ()
        if found is None or ranks is None or (found[1] == "group") != (found[2] is not None):
            raise GraphFileError(
                f"the header of a graph cannot be read: {line!r:.80}",
                where=f"{source}, line {number}",
                next_step='header lines read `role: forward` or `group "0": 0..7`',
            )
        if found[2] is None:
            fields[found[1]] = found[3]
        else:
            groups[json.loads(found[2])] = ranks
    return fields, groups
