"""The timeline page in a real browser: it opens without complaint, draws, zooms, moves, finds and tells."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from counterpoint.report.page import render_page, view_of
from counterpoint.sim.timeline import Bounds, Span, Timeline
from tests.support.browser import Browser
from tests.support.timelines import gradients, prediction

pytestmark = pytest.mark.browser
LIGHT_AND_DARK = ("255, 255, 255", "17, 21, 27")
HOSTILE = "</script><img src=x onerror=console.error(1)>"


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def page(opened: Browser, tmp_path: Path) -> Browser:
    found = prediction(gradients(odd=True))
    views = [view_of("step", found.before, found.after, found.report.ledger, HOSTILE)]
    views.append(replace(views[0], name="again"))
    (tmp_path / "page.html").write_text(render_page(views, HOSTILE), encoding="utf-8")
    opened.open(tmp_path / "page.html")
    return opened


def window(page: Browser) -> tuple[float, float]:
    page.settle()
    read = page.run("(({from, to}) => [Number(from), Number(to)])(document.getElementById('timeline').dataset)")
    return read[0], read[1]


def middle(page: Browser, x: float = 0.5, y: float = 0.3) -> tuple[float, float]:
    box = page.run("(box => [box.x, box.y, box.width, box.height])(timeline.getBoundingClientRect())")
    return box[0] + x * box[2], box[1] + y * box[3]


def place_of(page: Browser, row: int, time_share: float) -> tuple[float, float]:
    """The point of a lane at a share of the whole time; lanes are 26 high under an axis of 26 and a heading of 26."""
    box = page.run("(box => [box.x, box.y, box.width])(timeline.getBoundingClientRect())")
    return box[0] + 136 + time_share * (box[2] - 136), box[1] + 52 + 26 * row + 11


def test_it_opens_without_a_complaint_and_loads_nothing_else(page: Browser) -> None:
    assert page.complaints() == []
    assert len(page.requests()) == 1
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.run("document.getElementById('title').textContent") == HOSTILE


def test_all_collectives_are_listed_with_their_verdicts(page: Browser) -> None:
    rows = page.run("[...document.querySelectorAll('#rows tr')].map(row => row.textContent)")
    assert len(rows) == 4
    assert sum("bucketed into" in row for row in rows) == 3
    assert sum("left-alone: no-partner" in row for row in rows) == 1


def test_exposed_time_is_drawn_in_its_colour(page: Browser) -> None:
    counted = """(() => {
        const data = timeline.getContext('2d').getImageData(0, 0, timeline.width, timeline.height).data;
        let red = 0;
        for (let i = 0; i < data.length; i += 4)
            red += data[i] === 0xe0 && data[i + 1] === 0x31 && data[i + 2] === 0x1b;
        return red;
    })()"""
    assert page.run(counted) > 1000


def test_the_wheel_zooms_about_the_cursor_and_0_shows_everything(page: Browser) -> None:
    whole = window(page)
    x, y = middle(page, x=0.25)
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300)
    near = window(page)
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2.718, rel=0.01)
    assert whole[0] < near[0] < near[1] < whole[1]
    page.key("0")
    assert window(page) == whole


def test_keys_zoom_and_move(page: Browser) -> None:
    whole = window(page)
    page.key("+")
    near = window(page)
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 1.5)
    page.key("ArrowRight")
    right = window(page)
    assert right[0] > near[0]
    assert right[1] - right[0] == pytest.approx(near[1] - near[0])
    page.key("-")
    assert window(page)[1] - window(page)[0] > near[1] - near[0]


def test_dragging_moves_and_shift_dragging_zooms_into_the_range(page: Browser) -> None:
    page.key("+")
    before = window(page)
    (x, y), (x2, _) = middle(page, 0.5), middle(page, 0.4)
    page.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    page.mouse("mouseMoved", x2, y, button="left", buttons=1)
    page.mouse("mouseReleased", x2, y, button="left", clickCount=1)
    moved = window(page)
    assert moved[0] > before[0]
    page.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1, modifiers=8)
    page.mouse("mouseMoved", x2, y, button="left", buttons=1, modifiers=8)
    page.mouse("mouseReleased", x2, y, button="left", clickCount=1, modifiers=8)
    assert window(page)[1] - window(page)[0] < 0.2 * (moved[1] - moved[0])


def test_hovering_tells_node_bytes_verdict_and_exposed_time(page: Browser) -> None:
    page.mouse("mouseMoved", *place_of(page, row=1, time_share=0.5))
    assert page.run("tip.hidden") is False
    told = page.run("tip.textContent")
    for part in ("all_reduce", "bytes16.0 KiB", "exposed", "verdict", "group dp"):
        assert part in told


def test_a_click_selects_and_escape_clears(page: Browser) -> None:
    x, y = place_of(page, row=1, time_share=0.5)
    page.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    page.mouse("mouseReleased", x, y, button="left", clickCount=1)
    assert "all_reduce" in page.run("timeline.dataset.selected")
    assert page.run("document.getElementById('details').hidden") is False
    page.key("Escape")
    assert page.run("document.getElementById('details').hidden") is True


def test_search_finds_steps_through_and_narrows_the_table(page: Browser) -> None:
    page.key("/")
    page.type("no-partner")
    assert page.run("document.getElementById('found').textContent") == "4 found"
    assert page.run("document.querySelectorAll('#rows tr').length") == 1
    page.key("Enter")
    assert page.run("document.getElementById('found').textContent") == "1 of 4"
    assert page.run("timeline.dataset.selected") != ""
    first = page.run("timeline.dataset.selected")
    page.key("Enter")
    assert page.run("document.getElementById('found').textContent") == "2 of 4"
    page.type(" nowhere")
    assert page.run("document.getElementById('found').textContent") == "no match"
    page.key("Escape")
    assert page.run("document.querySelectorAll('#rows tr').length") == 4
    assert first


def test_a_row_of_the_table_shows_its_event(page: Browser) -> None:
    page.run("document.querySelector('#rows button').click()")
    page.settle()
    assert "all_reduce" in page.run("timeline.dataset.selected")


def test_the_theme_follows_the_system_and_the_button(page: Browser) -> None:
    light, dark = (f"getComputedStyle(document.body).backgroundColor === 'rgb({c})'" for c in LIGHT_AND_DARK)
    page.until(light)
    page.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.until(dark)
    page.run("document.getElementById('theme').click()")
    page.until(light)
    page.ask("Emulation.setEmulatedMedia", features=[])


def test_another_graph_can_be_chosen(page: Browser) -> None:
    page.run("(view.value = 1, view.dispatchEvent(new Event('change')))")
    assert page.run("timeline.getAttribute('aria-label')").startswith("Timeline of again. before: step")


def test_controls_have_names(page: Browser) -> None:
    nodes = page.ask("Accessibility.getFullAXTree")["nodes"]
    controls = [
        n for n in nodes if n.get("role", {}).get("value") in ("button", "searchbox", "combobox", "application")
    ]
    assert len(controls) > 8
    assert [node for node in controls if not node.get("name", {}).get("value")] == []


def large(events: int) -> Timeline:
    chance, spans, now = random.Random(0), [], 0.0
    for number in range(events // 2):
        us = chance.uniform(5, 50)
        spans.append(Span(lane="compute", name=f"mm_{number}", start_us=now, end_us=now + us, kind="compute"))
        spans.append(Span(lane="group dp", name=f"ar_{number}", start_us=now, end_us=now + us / 2, kind="all_reduce"))
        now += us
    bounds = Bounds(compute_us=now, channels_us={}, critical_path_us=now)
    memory = tuple((span.start_us, 1 << 20) for span in spans[::2])
    return Timeline(
        spans=tuple(spans), memory=memory, step_us=now, compute_us=now, exposed_us=0, peak_bytes=1 << 20, bounds=bounds
    )


def test_ten_thousand_events_open_and_answer(opened: Browser, tmp_path: Path) -> None:
    timeline = large(10_000)
    ledger = prediction(gradients()).report.ledger
    (tmp_path / "large.html").write_text(render_page([view_of("large", timeline, timeline, ledger)]), encoding="utf-8")
    opened.open(tmp_path / "large.html")
    opened.key("/")
    opened.type("mm_4321")
    assert opened.run("document.getElementById('found').textContent") == "2 found"
    opened.key("Enter")
    assert opened.run("timeline.dataset.selected") == "mm_4321"
    low, high = window(opened)
    assert high - low < timeline.step_us / 100
    assert opened.complaints() == []
