"""Topologies: which level a group uses, presets, files of one's own, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from counterpoint.cost.link import Link
from counterpoint.cost.presets import PRESETS, topology
from counterpoint.cost.processor import PROCESSORS
from counterpoint.cost.topology import Level, Topology
from counterpoint.errors import OptionError

BOX = topology("h200x8-ib400")

FILE = """
name = "two racks"
processor = "h100"
call_us = [6, 8]

[[levels]]
name = "node"
ranks = 4
latency_us = [1, 3]
bandwidth_gbps = [100, 1000]
peer_access = true
copy_engines = 2

[[levels]]
name = "rack"
ranks = 16
latency_us = [3, 10]
bandwidth_gbps = [50, 400]

[[levels]]
name = "network"
latency_us = [5, 20]
bandwidth_gbps = [25, 100]
ports = 2
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("ranks", "level"),
    [
        ((0, 1), "node"),
        (range(8), "node"),
        ((9, 15), "node"),
        ((7, 8), "network"),
        ((0, 8, 16), "network"),
        (range(64), "network"),
        ((3,), "node"),
        ((), "node"),
    ],
)
def test_the_level_follows_from_the_ranks(ranks: tuple[int, ...], level: str) -> None:
    assert BOX.level_of(ranks).name == level


def test_every_level_that_a_group_crosses_is_told() -> None:
    assert [level.name for level in BOX.levels_of(range(16))] == ["node", "network"]
    assert [level.name for level in BOX.levels_of((0, 8))] == ["network"]
    assert BOX.levels_of((5,)) == ()


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    mine = topology(written(tmp_path, FILE))
    assert mine.name == "two racks"
    assert mine.processor == PROCESSORS["h100"]
    assert mine.call_us == (6.0, 8.0)
    assert [mine.level_of(ranks).name for ranks in ((0, 3), (0, 15), (0, 16))] == ["node", "rack", "network"]
    assert mine.levels[0].link == Link(latency_us=3, bandwidth_gbps=1000)
    assert mine.levels[0].peer_access
    assert mine.levels[2].ports == 2


def test_a_file_with_a_processor_of_its_own(tmp_path: Path) -> None:
    text = FILE.replace('processor = "h100"', "").replace(
        "[[levels]]", "[processor]\ngflops = 100\nmemory_gb_per_s = 10\n\n[[levels]]", 1
    )
    assert topology(written(tmp_path, text)).processor.gflops == 100


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "two racks"', "name = 3", "expected str"),
        ("processor =", "procesor =", "did you mean 'processor'"),
        ('"h100"', '"h1000"', "did you mean 'h100'"),
        ("latency_us = [1, 3]", "", "'latency_us' is missing"),
        ("latency_us = [1, 3]", "latency_us = [1]", "as many latencies as bandwidths"),
        ("latency_us = [1, 3]", 'latency_us = ["a", 3]', "no number"),
        ("latency_us = [1, 3]", "latency_us = [-1, 3]", "no link is like"),
        ("call_us = [6, 8]", "call_us = [6]", "as many ways of sending"),
        ("call_us = [6, 8]", "call_us = [6, -1]", "less than no time"),
        ("ranks = 4", "ranks = 3", "multiple of those"),
        ("ranks = 4", "ranks = true", "expected int"),
        ("ranks = 4", "", "needs `ranks`"),
        ("ports = 2", "ports = 0", "at least one port"),
        ("ports = 2", "ranks = 64", "holds all ranks"),
        ("[[levels]]", "[[level]]", "no 'level'"),
        ("[[levels]]", "[[levels", "not valid TOML"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = written(tmp_path, FILE.replace(old, new))
    with pytest.raises(OptionError, match=message):
        topology(path)


def test_an_unknown_name_tells_near_ones() -> None:
    with pytest.raises(OptionError, match="did you mean 'h200x8-ib400'"):
        topology("h200x8-ib40")
    with pytest.raises(OptionError, match=r"known: .*cpu-10g"):
        topology("zzz")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        topology(tmp_path / "none.toml")


def test_no_levels_are_refused() -> None:
    with pytest.raises(OptionError, match="at least one level"):
        Topology(name="none", levels=(), processor=PROCESSORS["cpu"])


def test_the_text_tells_topologies_apart(tmp_path: Path) -> None:
    texts = {preset.text for preset in PRESETS.values()}
    assert len(texts) == len(PRESETS)
    mine = topology(written(tmp_path, FILE))
    assert mine.text == topology(written(tmp_path, FILE)).text
    node: Level = mine.levels[0]
    changed = [replace(node, multicast=True), replace(node, peer_access=False), replace(node, copy_engines=3)]
    assert len({mine.text, *(replace(mine, levels=(level, *mine.levels[1:])).text for level in changed)}) == 4
    assert replace(mine, processor=PROCESSORS["cpu"]).text != mine.text


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_found_by_their_own_name(name: str) -> None:
    assert topology(name).name == name
