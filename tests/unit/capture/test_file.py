"""Graph files: what is saved is what is loaded, byte for byte, and every damage is a clear error."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.testing._internal.distributed.fake_pg import FakeStore

from counterpoint.capture.file import graphs_of, graphs_text, load_graph, load_graphs, save_graph
from counterpoint.capture.graph import CapturedGraph
from counterpoint.errors import CaptureError, GraphError, GraphFileError
from counterpoint.ir.text import parse_graph, print_graph

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")

TEXT = """\
graph
  symbol s0 = 16
  %x: f32[s0, 4] = placeholder
  at /u/model.py:3 in forward | layers.0 Linear | return x.sum()
  %r: f32[s0, 4] = _c10d_functional.all_reduce(%x, "sum", "0") with counterpoint={"divisor": 8}
  %w: f32[s0, 4] = _c10d_functional.wait_tensor(%r)
  return (%w,)
"""


def captured(**changes: Any) -> CapturedGraph:
    usual = CapturedGraph(
        parse_graph(TEXT), 'a "block"', "forward", 8, 3, {"0": tuple(range(8)), "odd": (1, 3, 5, 7), "9": (0, 1, 4)}
    )
    return dataclasses.replace(usual, **changes)


def with_constant() -> CapturedGraph:
    root = nn.Module()
    root.register_buffer("c", torch.randn(100, 3))
    graph = fx.Graph()
    graph.output(graph.get_attr("c"))
    return captured(gm=fx.GraphModule(root, graph))


def test_a_graph_comes_back_with_all_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "block.graph"
    save_graph(path, captured(stage="post_grad"))
    loaded = load_graph(path)
    assert (loaded.name, loaded.role, loaded.stage) == ('a "block"', "forward", "post_grad")
    assert (loaded.world_size, loaded.rank, loaded.torch_version) == (8, 3, torch.__version__)
    assert loaded.groups == {"0": tuple(range(8)), "odd": (1, 3, 5, 7), "9": (0, 1, 4)}
    assert print_graph(loaded.gm, locations=True, notes=True) == TEXT


def test_bytes_are_deterministic_and_survive_a_second_trip(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    save_graph(first, [with_constant(), captured(name="other")])
    save_graph(second, load_graphs(first))
    assert first.read_bytes() == second.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_large_constants_come_back_bit_for_bit(tmp_path: Path) -> None:
    graph = with_constant()
    save_graph(tmp_path / "g", graph)
    assert torch.equal(load_graph(tmp_path / "g").gm.c, graph.gm.c)


def test_several_graphs_need_the_plural(tmp_path: Path) -> None:
    save_graph(tmp_path / "g", [captured(), captured(name="second", role="backward")])
    assert [g.role for g in load_graphs(tmp_path / "g")] == ["forward", "backward"]
    with pytest.raises(GraphFileError, match=r"2 graphs: .*second \(backward\)"):
        load_graph(tmp_path / "g")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "g"
    save_graph(path, captured())
    before = path.read_bytes()
    bad = captured()
    bad.gm.graph.call_method("relu", (next(iter(bad.gm.graph.nodes)),))
    with pytest.raises(GraphError, match="call_method"):
        save_graph(path, bad)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["g"]


def test_nothing_to_save_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no graph to save"):
        save_graph(tmp_path / "g", [])


def test_a_person_may_edit_a_file_and_drop_the_checksum() -> None:
    text = graphs_text([captured()]).replace("s0 = 16", "s0 = 32")
    with pytest.raises(GraphFileError, match="damaged or edited"):
        graphs_of(text)
    body = text[: text.rindex("== end")]
    (edited,) = graphs_of(body.replace("\n", "\r\n") + "== end ==\r\n")
    assert "s0 = 32" in print_graph(edited.gm)


def damaged(change: Callable[[str], str]) -> str:
    text = change(graphs_text([with_constant()]))
    with pytest.raises(GraphFileError) as raised:
        graphs_of(text, source="g")
    assert raised.value.where is not None
    assert raised.value.where.startswith("g")
    assert raised.value.next_step
    return str(raised.value)


def without_sum(text: str) -> str:
    return text[: text.rindex("== end")] + "== end ==\n"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: "", "not a graph file"),
        (lambda t: "PK\x03\x04" + t, "not a graph file"),
        (lambda t: t.replace("graphs 1", "graphs 2", 1), f"has format 2 (written with torch {torch.__version__})"),
        (lambda t: t[: len(t) // 2], "truncated"),
        (lambda t: t[: t.rindex("== end")], "truncated"),
        (lambda t: t.replace("f32[100", "f32[101"), "checksum does not match"),
        (lambda t: without_sum(t).replace("role: forward", "role: sideways"), "role 'sideways' is none of"),
        (lambda t: without_sum(t).replace("role: forward\n", ""), "the field 'role' is missing"),
        (lambda t: without_sum(t).replace("rank: 3", "rank: 9"), "rank 9 is not in a world of 8"),
        (lambda t: without_sum(t).replace("rank: 3", "rank: three"), "header of a graph"),
        (lambda t: without_sum(t).replace("rank: 3", "rank 3"), "'rank 3'"),
        (lambda t: without_sum(t).replace('group "0": 0..7', 'group "0": 0..8'), "outside a world of 8"),
        (lambda t: without_sum(t).replace('group "0": 0..7', 'group "0": all'), "all"),
        (lambda t: without_sum(t).replace('group "0"', "group 0"), "header of a graph"),
        (lambda t: without_sum(t).replace(" 1200 ==", " 1199 =="), "does not match its checksum"),
        (lambda t: without_sum(t).replace(" 1200 ==", " ==").replace("== data ", "== data x"), "cannot be read"),
        (lambda t: without_sum(t).replace("f32[100, 3] = data", "f32[100, 4] = data"), "1600 bytes of values"),
        (lambda t: without_sum(t).replace("return", "retrun"), "expected `graph`, an `attr` line"),
    ],
)
def test_every_damage_says_what_is_wrong_and_what_to_do(change: Callable[[str], str], says: str) -> None:
    assert says in damaged(change)


def test_errors_in_the_graph_carry_the_line_of_the_file() -> None:
    text = without_sum(graphs_text([captured()])).replace("aten", "aten").replace("wait_tensor", "wait_tensr")
    line = next(i for i, row in enumerate(text.split("\n"), start=1) if "wait_tensr" in row)
    with pytest.raises(GraphFileError, match=rf"line {line}, column") as raised:
        graphs_of(text)
    assert "_c10d_functional.wait_tensor" in str(raised.value)


def test_an_unknown_operator_of_another_torch_names_both_versions() -> None:
    text = without_sum(graphs_text([captured(torch_version="2.99.0")])).replace("wait_tensor", "wait_tensr")
    with pytest.raises(GraphFileError, match=rf"from torch 2\.99\.0 and this is torch {torch.__version__[:4]}"):
        graphs_of(text)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(GraphFileError, match="cannot be read"):
        load_graph(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(GraphFileError, match="not a graph file"):
        load_graph(tmp_path / "binary")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"role": "both"}, "role 'both'"),
        ({"stage": "lowered"}, "stage 'lowered'"),
        ({"rank": 8}, "rank 8"),
        ({"groups": {"0": ()}}, "empty"),
        ({"groups": {"0": (1, 1)}}, "twice"),
        ({"groups": {"0": (8,)}}, "outside"),
    ],
)
def test_a_captured_graph_checks_its_fields(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CaptureError, match=says):
        captured(**changes)


@pytest.fixture
def fake_world() -> Iterator[Callable[[int], None]]:
    def start(size: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> list[fx.GraphModule]:
    """The graphs that the compiler is handed for a call and its backward pass."""
    found: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, inputs: Any) -> Any:
        found.append(gm)
        return gm.forward

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    out = torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    if out.requires_grad:
        out.sum().backward()
    return found


def test_process_group_objects_travel_by_name(fake_world: Callable[[int], None]) -> None:
    fake_world(8)
    gm = captured().gm
    start = next(node for node in gm.graph.nodes if node.name == "r")
    start.args = (start.args[0], "sum", dist.group.WORLD)
    (loaded,) = graphs_of(graphs_text([captured(gm=gm)]))
    read = next(node for node in loaded.gm.graph.nodes if node.name == "r")
    assert read.args[2] == dist.group.WORLD.group_name
    assert f'group("{dist.group.WORLD.group_name}")' in graphs_text([loaded])


class Layer(nn.Module):
    """Tensor parallel by hand: gather the sequence, two matrices, reduce and scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = collectives.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
        hidden = self.down(nn.functional.gelu(self.up(whole)))
        return x + collectives.reduce_scatter_tensor_autograd(hidden, "sum", 0, dist.group.WORLD)


def check(graphs: list[fx.GraphModule], world_size: int, path: Path) -> str:
    saved = [CapturedGraph(gm, f"graph {i}", "step", world_size) for i, gm in enumerate(graphs)]
    save_graph(path, saved)
    loaded = load_graphs(path)
    assert len(graphs) == len(loaded) > 0
    for before, after in zip(saved, loaded, strict=True):
        after.gm.graph.lint()
        for old, new in zip(before.gm.graph.nodes, after.gm.graph.nodes, strict=True):
            assert (old.name, old.op, old.target) == (new.name, new.op, new.target) or old.op == "output"
            assert str(old.args) == str(new.args)
            assert str(old.kwargs) == str(new.kwargs)
            if isinstance(old.meta.get("val"), torch.Tensor):
                # Printed, because the symbols of two shape environments are never equal.
                for value in (new.meta["val"], new.meta["tensor_meta"]):
                    assert str((value.shape, value.dtype)) == str((old.meta["val"].shape, old.meta["val"].dtype))
                assert str(old.meta["val"].stride()) == str(new.meta["val"].stride())
    assert graphs_text(loaded) == path.read_text()
    return path.read_text()


@pytest.mark.parametrize(("world_size", "dynamic"), [(8, None), (64, True)])
def test_captured_training_graphs_survive(
    world_size: int, dynamic: bool | None, tmp_path: Path, fake_world: Callable[[int], None]
) -> None:
    fake_world(world_size)
    graphs = compiled(Layer(), torch.randn(12, 16), dynamic=dynamic)
    assert len(graphs) == 2
    text = check(graphs, world_size, tmp_path / "g")
    assert "_c10d_functional.all_gather_into_tensor(" in text
    assert f"{Path(__file__).name}:" in text
    assert ("symbol s" in text) == bool(dynamic)


def test_captured_graphs_with_run_time_sizes_and_branches_survive(
    tmp_path: Path, fake_world: Callable[[int], None]
) -> None:
    fake_world(8)

    def ragged(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= x.shape[0])
        doubled = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))
        rows = collectives.all_reduce(x.nonzero() * 2 + k, "sum", dist.group.WORLD)
        return rows.sum() + doubled.narrow(0, 0, k).sum() + torch.tensor([1.0, float("nan")]).sum()

    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        text = check(compiled(ragged, torch.randn(7, 5), torch.tensor(3)), 8, tmp_path / "g")
    assert "symbol u" in text
    assert 'unbacked_bindings={"u' in text
    assert "graph true_graph_0" in text
    assert "= [1.0, nan]" in text
