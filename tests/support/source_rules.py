"""Rules about the package's source, read from its syntax trees: layers, private torch names, banned statements.

Each rule takes the folder of the package and returns violations as text, so a test can also hand it a planted one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "counterpoint"

# A module may import modules of its own layer's package and of any lower level; packages of one level do not mix.
LEVELS = {
    "errors": 0,
    "logs": 0,
    "_torch": 1,
    "options": 1,
    "ir": 2,
    "cost": 3,
    "schedule": 4,
    "passes": 5,
    "sim": 5,
    "runtime": 5,
    "capture": 6,
    "report": 6,
    "inductor": 7,
    # The package's own door. The commands are users of it; whatever it shows must not come in through it.
    "__init__": 8,
    "cli": 9,
    "__main__": 10,
}
MAY_USE_PRIVATE_TORCH = ("inductor", "_torch")
# The registries of a module, which every wrapper library reads for want of a public way; and the public part of a
# NamedTuple, whose names begin with an underscore only to stay clear of its fields.
COMMON_PRIVATE_ATTRIBUTES = frozenset(
    {"_parameters", "_buffers", "_modules", "_replace", "_asdict", "_fields", "_make"}
)
IMPORT_FUNCTIONS = ("import_module", "__import__")


def layer_violations(package: Path) -> list[str]:
    """Imports of a higher layer, of a neighbour on the same level, or of the package's door from below it."""
    found: list[str] = []
    for path, tree in _sources(package):
        own = _layer_of(path, package)
        if own not in LEVELS:
            found.append(f"{path.relative_to(package)}: '{own}' has no place in the layer order")
            continue
        for line, target in _imports(tree, path, package):
            other = _layer_of_target(target, package)
            if other is not None and other != own and not LEVELS.get(other, 99) < LEVELS[own]:
                found.append(f"{path.relative_to(package)}:{line}: '{own}' imports '{other}' ({target})")
    return found


def private_torch_names(package: Path) -> list[str]:
    """Private torch names outside the two places that may use them. Operator namespaces are public names."""
    found: list[str] = []
    for path, tree in _sources(package):
        if _layer_of(path, package) not in MAY_USE_PRIVATE_TORCH:
            names = {(line, name) for line, name in _torch_names(tree) if _is_private(name)}
            longest = [
                (line, name)
                for line, name in names
                if not any(line == other_line and other.startswith(name + ".") for other_line, other in names)
            ]
            found += [f"{path.relative_to(package)}:{line}: {name}" for line, name in sorted(longest)]
    return found


def foreign_private_attributes(package: Path) -> list[str]:
    """`value._name` where no class or module of the package has a `_name`: a private part of somebody else's object."""
    sources = list(_sources(package))
    own = COMMON_PRIVATE_ATTRIBUTES | {name for _, tree in sources for name in _own_private_names(tree)}
    return [
        f"{path.relative_to(package)}:{line}: {name}"
        for path, tree in sources
        if _layer_of(path, package) not in MAY_USE_PRIVATE_TORCH
        for line, name in _private_attributes(tree)
        if name not in own and not name.startswith(f"_{PACKAGE}")
    ]


def bare_asserts(package: Path) -> list[str]:
    """`assert` statements: they vanish under -O and say nothing a user can act on."""
    return _statements(package, ast.Assert, "assert")


def global_statements(package: Path) -> list[str]:
    """`global` statements: state that outlives its run."""
    return _statements(package, ast.Global, "global")


# -- reading a source tree --------------------------------------------------------------------------------------------


def _sources(package: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(package.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"), str(path))


def _statements(package: Path, kind: type[ast.AST], name: str) -> list[str]:
    return [
        f"{path.relative_to(package)}:{node.lineno}: {name}"  # type: ignore[attr-defined]
        for path, tree in _sources(package)
        for node in ast.walk(tree)
        if isinstance(node, kind)
    ]


def _layer_of(path: Path, package: Path) -> str:
    return path.relative_to(package).with_suffix("").parts[0]


def _layer_of_target(target: str, package: Path) -> str | None:
    """The layer an import reaches; None for another package."""
    parts = target.split(".")
    if parts[0] != PACKAGE:
        return None
    first = parts[1] if len(parts) > 1 else ""
    if first.startswith("__"):
        return None
    is_module = (package / first).is_dir() or (package / f"{first}.py").is_file()
    return first if first and is_module else "__init__"


# -- imports ----------------------------------------------------------------------------------------------------------


def _imports(tree: ast.AST, path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Every import, wherever it stands, as an absolute dotted name: the module, and each name taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            # The bare package name reaches nothing by itself; what is taken from it by attribute counts below.
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name != PACKAGE or alias.asname)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == PACKAGE:
            yield node.lineno, f"{PACKAGE}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, path, package)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _called_name(node) in IMPORT_FUNCTIONS and node.args:
            literal = node.args[0]
            if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                yield node.lineno, literal.value


def _absolute(node: ast.ImportFrom, path: Path, package: Path) -> str:
    if not node.level:
        return node.module or ""
    here = [PACKAGE, *path.relative_to(package).parent.parts]
    base = here[: len(here) - (node.level - 1)]
    return ".".join([*base, *([node.module] if node.module else [])])


def _own_private_names(tree: ast.Module) -> Iterator[str]:
    """Private names that the file gives to its functions, classes, variables, fields and attributes of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr


def _private_attributes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    known = _torch_aliases(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not _is_private(node.attr):
            continue
        if not (_dotted(node, known) or "").startswith("torch.ops."):
            yield node.lineno, node.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _called_name(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


# -- torch names ------------------------------------------------------------------------------------------------------


def _is_private(name: str) -> bool:
    if name.startswith("torch.ops."):
        return False
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def _torch_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every torch name that is imported, or reached by attributes or `getattr` from an imported one."""
    known = _torch_aliases(tree)
    for line, target in _imports(tree, Path("x.py"), Path()):
        if _is_torch(target):
            yield line, target
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = _dotted(node, known)
        elif isinstance(node, ast.Call) and _called_name(node) == "getattr":
            name = _getattr_name(node, known)
        else:
            continue
        if name is not None:
            yield node.lineno, name


def _is_torch(name: str) -> bool:
    return name == "torch" or name.startswith("torch.")


def _torch_aliases(tree: ast.Module) -> dict[str, str]:
    """Local name -> torch name: from imports, and from assignments such as `aten = torch.ops.aten`."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_torch(alias.name):
                    known.update({alias.asname: alias.name} if alias.asname else {"torch": "torch"})
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_torch(node.module or ""):
            known.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = _dotted(node.value, known)
            known.update({node.targets[0].id: value} if value else {})
    return known


def _dotted(node: ast.expr, known: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, known)
        return None if base is None else f"{base}.{node.attr}"
    return None


def _getattr_name(call: ast.Call, known: dict[str, str]) -> str | None:
    if len(call.args) < 2 or not isinstance(call.args[1], ast.Constant):
        return None
    base = _dotted(call.args[0], known)
    return None if base is None else f"{base}.{call.args[1].value}"
