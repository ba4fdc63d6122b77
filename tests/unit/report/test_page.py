"""The timeline page is one file that loads nothing, and no name in it can break out of its data."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from counterpoint.errors import CounterpointError
from counterpoint.passes.ledger import Ledger
from counterpoint.report.page import View, render_page, view_of
from counterpoint.report.page.render import embedded
from tests.support.timelines import gradients, prediction

HOSTILE = "</script><script>alert(1)</script><!--\u2028&\\u003c@DATA@"


def view(name: str = "step") -> View:
    found = prediction(gradients())
    return view_of(name, found.before, found.after, found.report.ledger, "eight ranks")


def data_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    read: dict[str, object] = json.loads(found[1])
    return read


def test_the_page_loads_nothing_and_allows_nothing_to_be_loaded() -> None:
    page = render_page([view()])
    assert not re.findall(r"""\b(?:src|href)\s*=\s*["'](?!#)""", page)
    assert not re.findall(r"https?://|@import|url\(", page)
    assert "default-src 'none'" in page
    assert not re.findall(r"@[A-Z_]+@", page)


def test_names_cannot_break_out_of_the_data() -> None:
    hostile = replace(view(), name=HOSTILE, subtitle=HOSTILE)
    page = render_page([hostile], title=HOSTILE)
    assert page.count("</script>") == render_page([view()]).count("</script>")
    assert data_of(page)["views"][0]["name"] == HOSTILE  # type: ignore[index]
    assert "<title>&lt;/script&gt;" in page


@pytest.mark.parametrize("text", ["</script>", "<!--", "&amp;", "\u2028", "é\\"])
def test_embedded_json_reads_back_and_holds_no_markup(text: str) -> None:
    written = embedded({"x": text})
    assert json.loads(written) == {"x": text}
    assert not set("<>&\u2028\u2029") & set(written)


def test_every_span_and_collective_is_there() -> None:
    found = prediction(gradients())
    (read,) = data_of(render_page([view_of("s", found.before, found.after, found.report.ledger)]))["views"]  # type: ignore[misc]
    assert [run["label"] for run in read["runs"]] == ["before", "after"]
    assert [len(run["spans"]["start"]) for run in read["runs"]] == [len(found.before.spans), len(found.after.spans)]
    assert [run["lanes"] for run in read["runs"]] == [["compute", "group dp"]] * 2
    assert [row["origin"] for row in read["collectives"]] == [entry.facts.origin for entry in found.report.ledger]
    assert all("bucketed" in row["verdict"] for row in read["collectives"])


def test_a_page_without_views_is_refused() -> None:
    with pytest.raises(CounterpointError, match="nothing to draw"):
        render_page([])


def test_a_graph_without_collectives_can_be_drawn() -> None:
    found = prediction(gradients())
    bare = replace(found.after, spans=(), memory=(), step_us=0.0, compute_us=0.0, exposed_us=0.0, peak_bytes=0)
    assert data_of(render_page([view_of("empty", bare, bare, Ledger())]))
