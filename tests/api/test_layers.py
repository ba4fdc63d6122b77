"""The order of the layers, private torch names in two places only, no assert and no global: each rule also fires."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import source_rules as rules

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "counterpoint"

Rule = Callable[[Path], list[str]]


@pytest.mark.parametrize(
    "rule",
    [
        rules.layer_violations,
        rules.private_torch_names,
        rules.foreign_private_attributes,
        rules.bare_asserts,
        rules.global_statements,
    ],
)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    assert rule(PACKAGE) == []


def test_every_layer_of_the_design_is_in_the_order() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert folders <= set(rules.LEVELS)


def tree(tmp_path: Path, files: dict[str, str]) -> Path:
    """A package of empty layers with `files` put into it."""
    for layer in ("ir", "passes", "sim", "runtime", "capture", "report", "inductor", "cli"):
        (tmp_path / layer).mkdir()
        (tmp_path / layer / "__init__.py").touch()
    for name in ("errors.py", "options.py", "_torch.py", "__init__.py"):
        (tmp_path / name).touch()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("ir/view.py", "import counterpoint.passes.base"),
        ("ir/view.py", "from counterpoint.passes import base"),
        ("ir/view.py", "from counterpoint import passes"),
        ("ir/view.py", "from ..passes import base"),
        ("ir/view.py", "from .. import passes"),
        ("ir/__init__.py", "from ..passes import base"),
        ("ir/deep/inner.py", "from ...passes import base"),
        ("ir/view.py", "def lazy():\n    from counterpoint.passes import base"),
        ("ir/view.py", "import importlib\nimportlib.import_module('counterpoint.passes.base')"),
        ("ir/view.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import counterpoint.cli"),
        ("passes/one.py", "from counterpoint.runtime import ops"),
        ("runtime/one.py", "from counterpoint.passes import base"),
        ("sim/one.py", "from counterpoint.passes import base"),
        ("capture/one.py", "from counterpoint.report import ledger"),
        ("errors.py", "import counterpoint._torch"),
        ("inductor/one.py", "from counterpoint import replicate"),
        ("inductor/one.py", "import counterpoint\ncounterpoint.replicate"),
        ("__init__.py", "from counterpoint.cli import main"),
        ("ir/view.py", "import counterpoint\ncounterpoint.passes.base"),
        ("ir/view.py", "import counterpoint as c"),
        ("somewhere.py", ""),
    ],
)
def test_an_import_against_the_order_is_found(tmp_path: Path, file: str, text: str) -> None:
    found = rules.layer_violations(tree(tmp_path, {file: text}))
    assert len(found) == 1
    assert file.removesuffix(".py") in found[0]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("passes/one.py", "from counterpoint.ir import view\nfrom . import base\nfrom .base import Pass"),
        ("cli/demo.py", "import counterpoint.inductor.backend\nfrom counterpoint import capture"),
        ("ir/view.py", "import counterpoint\ncounterpoint.__name__"),
        ("cli/demo.py", "import counterpoint\ncounterpoint.replicate"),
        ("__init__.py", "from . import inductor\nfrom .capture import replicate"),
        ("_torch.py", "from counterpoint.errors import GroupError\nimport torch._dynamo"),
        ("ir/view.py", "import counterpoints.cli\nfrom collections import abc"),
    ],
)
def test_an_import_along_the_order_passes(tmp_path: Path, file: str, text: str) -> None:
    assert rules.layer_violations(tree(tmp_path, {file: text})) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch._dynamo", "torch._dynamo"),
        ("import torch._inductor.config as c", "torch._inductor.config"),
        ("from torch import _C", "torch._C"),
        ("from torch._C import Node", "torch._C.Node"),
        ("from torch.fx._utils import x", "torch.fx._utils.x"),
        ("def f():\n    from torch.utils import _pytree", "torch.utils._pytree"),
        ("import torch\nx = torch._C._distributed_c10d", "torch._C._distributed_c10d"),
        ("import torch\ntorch._dynamo.reset()", "torch._dynamo.reset"),
        ("import torch.distributed as dist\ndist._get_default_group()", "torch.distributed._get_default_group"),
        ("from torch import fx\nfx._pytree.x", "torch.fx._pytree.x"),
        ("import torch\ngetattr(torch, '_ops')", "torch._ops"),
        ("from torch import fx\nx = fx.graph\nx._Namespace()", "torch.fx.graph._Namespace"),
        ("import torch\nx: torch._ops.OpOverload", "torch._ops.OpOverload"),
        ("import importlib\nimportlib.import_module('torch._inductor')", "torch._inductor"),
    ],
)
def test_a_private_torch_name_is_found(tmp_path: Path, text: str, name: str) -> None:
    found = rules.private_torch_names(tree(tmp_path, {"passes/one.py": text}))
    assert [line.split(": ")[1] for line in found] == [name]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("inductor/one.py", "import torch._inductor"),
        ("_torch.py", "from torch._C import Node"),
        ("passes/one.py", "import torch\ntorch.ops._c10d_functional.all_reduce.default"),
        ("passes/one.py", "import torch\ntorch.__version__\ntorch.fx.Graph()"),
        ("passes/one.py", "from torch import ops\nops._dtensor.shard_dim_alltoall"),
        ("passes/one.py", "class A:\n    def f(self):\n        return self._torch"),
    ],
)
def test_public_names_and_the_two_doors_pass(tmp_path: Path, file: str, text: str) -> None:
    assert rules.private_torch_names(tree(tmp_path, {file: text})) == []


@pytest.mark.parametrize(
    "text", ["def f(node):\n    return node.target._schema", "def f(m):\n    m._secret = 1", "x._y.z()"]
)
def test_a_private_part_of_a_foreign_object_is_found(tmp_path: Path, text: str) -> None:
    assert len(rules.foreign_private_attributes(tree(tmp_path, {"passes/one.py": text}))) == 1


def test_own_private_parts_pass(tmp_path: Path) -> None:
    text = "import torch\nclass A:\n    _x: int\n    def f(self, other):\n        self._y = other._x + other._y\n"
    text += "        torch.ops._c10d_functional.wait_tensor(other._f)\naten = torch.ops.aten\naten._to_copy.default\n"
    files = {"passes/one.py": text, "passes/two.py": "def _f(): ...", "_torch.py": "def f(n):\n    n._schema"}
    assert rules.foreign_private_attributes(tree(tmp_path, files)) == []


def test_an_assert_and_a_global_are_found(tmp_path: Path) -> None:
    package = tree(tmp_path, {"ir/view.py": "def f():\n    global x\n    x = 1\n    assert x, 'why'\n"})
    assert rules.bare_asserts(package) == ["ir/view.py:4: assert"]
    assert rules.global_statements(package) == ["ir/view.py:2: global"]


def test_test_folders_are_packages() -> None:
    """Without `__init__.py`, two test files of the same name collide and ranks cannot import their functions."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
