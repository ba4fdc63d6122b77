"""From a line of generated code to the collective of the graph that it is about."""

from __future__ import annotations

import pytest

from counterpoint.inductor.standstill import _launch_at
from counterpoint.ir.launches import Launch


def launch(node: str, kind: str = "all_reduce", group: str = "0") -> Launch:
    return Launch(group=group, kind=kind, reduce_op="sum", tensors=("float32 4",), node=node)


LAUNCHES = [
    launch("first"),
    launch("other_group", group="1"),
    launch("gather", kind="all_gather"),
    launch("second"),
    launch("many"),
]

INDUCTOR = """
    torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '0')
    torch.ops._c10d_functional.all_reduce_.default(buf1, 'sum', '1')
    torch.ops._c10d_functional.wait_tensor.default(buf0)
    buf2 = torch.ops._c10d_functional.all_gather_into_tensor.default(arg0, 2, '0')
    buf3 = empty_strided_cpu((4, ), (1, ), torch.float32)
    cpp_fused_add_0(buf0, buf3)
    torch.ops._c10d_functional.all_reduce_.default(buf3, 'sum', '0')
    buf4 = buf3; del buf3  # reuse
    torch.ops._c10d_functional.wait_tensor.default(buf4)
    torch.ops._c10d_functional.wait_tensor.default(buf1)
    buf5 = torch.ops._c10d_functional.all_reduce_coalesced.default([buf0, buf4], 'sum', '0')
    buf6 = buf5[0]
    buf7 = buf5[1]
    torch.ops._c10d_functional.wait_tensor.default(buf7)
    torch.ops._c10d_functional.wait_tensor.default(buf2)
""".splitlines(keepends=True)


ABOUT = {1: "first", 2: "other_group", 3: "first", 4: "gather", 7: "second", 9: "second", 10: "other_group", 11: "many"}


@pytest.mark.parametrize(("line", "node"), [*ABOUT.items(), (14, "many"), (15, "gather")])
def test_a_line_of_inductors_code_leads_to_its_collective(line: int, node: str) -> None:
    found = _launch_at(INDUCTOR[: line + 1], LAUNCHES)
    assert found is not None
    assert found.node == node


def test_without_code_generation_variables_are_called_like_nodes() -> None:
    lines = [
        "second = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '0')\n",
        "waited = torch.ops._c10d_functional.wait_tensor.default(second);  second = None\n",
    ]
    assert _launch_at(lines, LAUNCHES) == LAUNCHES[3]


@pytest.mark.parametrize("line", ["cpp_fused_add_0(buf0)", "buf0 = torch.ops.aten.mm.default(a, b)", ""])
def test_other_lines_are_about_no_collective(line: str) -> None:
    assert _launch_at([*INDUCTOR, line], LAUNCHES) is None
