"""Where options come from: the call, then `COUNTERPOINT_*` variables, then `[tool.counterpoint]`, then the default."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from counterpoint.errors import OptionError
from counterpoint.options import fields
from counterpoint.options.compile_options import CompileOptions
from counterpoint.options.text import value_from_text, value_text
from counterpoint.options.toml_text import NoTomlReader, parse_toml

LOGGER = logging.getLogger("counterpoint.options")
PREFIX = "COUNTERPOINT_"
OTHER_VARIABLES = frozenset({"COUNTERPOINT_LOGS", "COUNTERPOINT_RECORD"})
"""Variables with our prefix that are no options."""


class Setting(NamedTuple):
    """One option: the value in force, who gave it, and who asked for something else in vain."""

    name: str
    value: Any
    source: str
    overridden: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        info = fields.described(CompileOptions)[self.name]
        line = f"{info.kebab}={value_text(info, self.value)} from {self.source}"
        lost = (f"{value_text(info, value)} from {source}" for source, value in self.overridden)
        return "; instead of ".join([line, *lost])


@dataclass(frozen=True)
class EffectiveOptions:
    """The options in force, and for each where its value came from."""

    options: CompileOptions
    settings: tuple[Setting, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.settings))


class _Layer(NamedTuple):
    values: Mapping[str, Any]
    source: Callable[[str], str]


def effective(
    requested: Mapping[str, Any] | None = None,
    *,
    source: str = "options",
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> EffectiveOptions:
    """Put the sources together. What the call requests goes before the environment, that before pyproject.toml."""
    layers = (
        _requested(requested or {}, source),
        _environment(os.environ if environ is None else environ),
        _project(Path.cwd() if directory is None else directory),
    )
    settings = tuple(_setting(info, layers) for info in fields.described(CompileOptions).values())
    return EffectiveOptions(CompileOptions(**{s.name: s.value for s in settings}), settings)


def _setting(info: fields.OptionInfo, layers: tuple[_Layer, ...]) -> Setting:
    given = [(layer.source(info.name), layer.values[info.name]) for layer in layers if info.name in layer.values]
    if not given:
        return Setting(info.name, info.default, "default")
    (source, value), *lost = given
    return Setting(info.name, value, source, tuple(pair for pair in lost if pair[1] != value))


def _checked(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    built = CompileOptions.from_mapping(values, where)
    return {name: getattr(built, name) for name in (str(key).replace("-", "_") for key in values)}


def _requested(values: Mapping[str, Any], source: str) -> _Layer:
    return _Layer(_checked(values, source), lambda _: source)


def _environment(environ: Mapping[str, str]) -> _Layer:
    infos = fields.described(CompileOptions)
    values: dict[str, Any] = {}
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        name = variable.removeprefix(PREFIX).lower()
        where = f"environment variable {variable}"
        if name in infos:
            values[name] = fields.checked(infos[name], value_from_text(infos[name], environ[variable], where), where)
    for variable in unknown_variables(environ):
        near = fields.near_names(variable.removeprefix(PREFIX).lower(), infos)
        LOGGER.warning(
            "environment variable %s is not an option and is ignored%s",
            variable,
            f"; did you mean {near}?" if near else "",
        )
    return _Layer(values, lambda name: f"environment variable {PREFIX}{name.upper()}")


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that mean nothing, most likely misspelt options."""
    known = {f"{PREFIX}{name.upper()}" for name in fields.described(CompileOptions)} | OTHER_VARIABLES
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def _project(directory: Path) -> _Layer:
    candidates = (folder / "pyproject.toml" for folder in (directory, *directory.parents))
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    where = f"[tool.counterpoint] of {path}"
    table = _read_table(path) if path is not None else {}
    return _Layer(_checked(table, where), lambda _: where)


def _read_table(path: Path) -> Mapping[str, Any]:
    try:
        written = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        LOGGER.warning("%s cannot be read, so it gives no options: %s", path, error)
        return {}
    if "counterpoint" not in written:
        return {}
    try:
        table = parse_toml(written, str(path)).get("tool", {}).get("counterpoint", {})
    except NoTomlReader as error:
        LOGGER.warning("the options of %s are skipped: %s", path, error.what)
        return {}
    if not isinstance(table, dict):
        raise OptionError("tool.counterpoint is not a table", where=str(path), next_step="write [tool.counterpoint]")
    return table
