"""Reading TOML on every supported Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterpoint.errors import OptionError


class NoTomlReader(OptionError):
    """Python 3.10 has no reader of TOML of its own, and the package tomli is not installed."""


def parse_toml(written: str, where: str) -> Mapping[str, Any]:
    """The tables of a TOML text; OptionError where it is none, NoTomlReader where nothing can read it."""
    try:
        import tomllib as toml
    except ImportError:
        try:
            import tomli as toml  # type: ignore[no-redef, import-not-found, unused-ignore]
        except ImportError:
            raise NoTomlReader(
                "on Python 3.10 reading TOML needs the package tomli", where=where, next_step="pip install tomli"
            ) from None
    try:
        tables: Mapping[str, Any] = toml.loads(written)
    except toml.TOMLDecodeError as error:
        raise OptionError(f"the file is not valid TOML: {error}", where=where, next_step="repair it") from error
    return tables
