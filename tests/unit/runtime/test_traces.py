"""Tables from traces of the profiler: a real one of this machine, and events as NCCL's backend writes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch.profiler import ProfilerActivity, profile

from counterpoint.cli import main
from counterpoint.cost.measured import MeasuredTable, operator_key
from counterpoint.cost.model import CostModel
from counterpoint.errors import OptionError
from counterpoint.ir.build import GraphBuilder
from counterpoint.ir.ops import Kind
from counterpoint.runtime.traces import table_from_traces

GROUPS = {"pg_config": [{"pg_name": "0", "ranks": list(range(8))}, {"pg_name": "1", "ranks": [0, 4]}]}


def kernel(us: float, **details: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_X", "dur": us, "args": details}


def nccl(us: float, name: str, sent: int, received: int, dtype: str = "BFloat16", **details: Any) -> dict[str, Any]:
    facts = {"Collective name": name, "In msg nelems": sent, "Out msg nelems": received, "dtype": dtype}
    return kernel(us, **facts, **details)


def written(tmp_path: Path, *events: dict[str, Any], name: str = "trace.json") -> Path:
    path = tmp_path / name
    content = json.dumps({"traceEvents": list(events), "distributedInfo": GROUPS}).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def test_collectives_of_nccl(tmp_path: Path) -> None:
    ranks = {"Process Group Ranks": "[8, 12]", "Process Group Name": "1"}
    path = written(
        tmp_path,
        nccl(30, "_allgather_base", 1000, 2000, **ranks),
        nccl(20, "_allgather_base", 1000, 2000, **ranks),
        nccl(90, "_reduce_scatter_base", 8000, 1000, "Float", **{"Process Group Name": "0", "Group size": 8}),
        nccl(10, "allreduce", 500, 500, **{"Process Group Ranks": "[0, 1, ..., 7]", "Process Group Name": "0"}),
        nccl(10, "unheard_of", 500, 500, **ranks),
        nccl(10, "allreduce", 500, 500, "Strange", **ranks),
        kernel(5),
        {"ph": "i", "name": "instant"},
    )
    table = table_from_traces([path])
    everyone = tuple(range(8))
    assert table.device_type == "cuda"
    assert table.collectives == {
        (Kind.ALL_GATHER, (0, 4)): ((4000.0, 20.0),),
        (Kind.REDUCE_SCATTER, everyone): ((32000.0, 90.0),),
        (Kind.ALL_REDUCE, everyone): ((1000.0, 10.0),),
    }


def test_traces_of_several_ranks_take_the_shortest(tmp_path: Path) -> None:
    ranks = {"Process Group Ranks": "[0, 1]"}
    paths = [written(tmp_path, nccl(us, "allreduce", 100, 100, **ranks), name=f"{us}.json.gz") for us in (70, 40, 60)]
    assert table_from_traces(paths).collectives == {(Kind.ALL_REDUCE, (0, 1)): ((200.0, 40.0),)}


def test_products_on_a_gpu_take_the_time_of_their_kernels(tmp_path: Path) -> None:
    facts = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["c10::BFloat16", "c10::BFloat16"], "External id": 7}
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 99, "args": facts}
    table = table_from_traces([written(tmp_path, op, kernel(3, **{"External id": 7}), kernel(2, **{"External id": 7}))])
    assert table.operators == {"aten::mm(cuda bfloat16[64, 32], cuda bfloat16[32, 16])": 5.0}


def test_a_product_of_a_real_trace_is_found_by_a_graph(tmp_path: Path) -> None:
    x, bias = torch.ones(48, 48), torch.ones(48)
    # Torch 2.11 warns of a cycle that does not accumulate, though there is one alone.
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as record:
        torch.addmm(bias, x, x)
        torch.mm(x, x)
    path = tmp_path / "trace.json"
    record.export_chrome_trace(str(path))
    table = table_from_traces([path])
    b = GraphBuilder()
    left, offset = b.input("left", (48, 48)), b.input("offset", (48,))
    added = b.call(torch.ops.aten.addmm.default, offset, left, left)
    product = b.call(torch.ops.aten.mm.default, left, left)
    assert set(table.operators) == {operator_key(added), operator_key(product)}
    assert CostModel(table=table).node_us(product) == table.operators[operator_key(product)] > 0
    assert table.device_type == "cpu"


def gloo(us: float, name: str, elements: int) -> dict[str, Any]:
    args = {"Input type": ["float"], "Input Dims": [[elements]]}
    return {"ph": "X", "cat": "user_annotation", "name": f"gloo:{name}", "dur": us, "args": args}


def test_collectives_of_gloo_in_a_job_with_one_group(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = [gloo(50, "all_gather", 1000), gloo(40, "all_gather", 1000), gloo(30, "all_reduce", 500)]
    info = {"pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": info}))
    assert table_from_traces([path]).collectives == {
        (Kind.ALL_GATHER, (0, 1)): ((8000.0, 40.0),),
        (Kind.ALL_REDUCE, (0, 1)): ((2000.0, 30.0),),
    }


def test_which_of_two_groups_gloo_used_is_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="neither collectives nor products"):
        table_from_traces([written(tmp_path, gloo(50, "all_gather", 1000))])


@pytest.mark.parametrize(
    ("content", "message"), [("", "cannot be read"), ("[1]", "no traceEvents"), ('{"traceEvents": []}', "neither")]
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(OptionError, match=message):
        table_from_traces([path])


def test_the_command_writes_the_table_and_prints_the_error(tmp_path: Path) -> None:
    events = [nccl(10.0 * k, "allreduce", 1000 * 4**k, 1000 * 4**k, **{"Process Group Name": "0"}) for k in range(1, 6)]
    trace, output = written(tmp_path, *events), tmp_path / "table.json"
    args = ["calibrate", "--from-trace", str(trace), "--topology", "h100x8-ib400", "--output", str(output)]
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 0, done.output
    assert "predicted by the topology h100x8-ib400; typical error" in done.output
    assert "predicted by two numbers" in done.output
    assert MeasuredTable.load(output) == table_from_traces([trace])


def test_the_command_says_how_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    done = CliRunner().invoke(main, ["calibrate"])
    assert done.exit_code == 1
    assert "torchrun" in done.stderr
