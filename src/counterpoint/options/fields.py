"""Describing and checking options: fields of frozen dataclasses with help, unit, bounds and choices."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from enum import Enum
from typing import Any, Literal, TypeVar, Union

from counterpoint.errors import OptionError

_METADATA = "counterpoint"
_SCALARS = (bool, int, float, str)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class OptionInfo:
    """Everything known about one option: the only place that help, text form and checks read."""

    name: str
    """As a Python identifier; the text form writes hyphens for underscores."""
    scalar: type
    """Type of the value, or of each element when `repeated`."""
    default: Any
    optional: bool = False
    """None is a value too."""
    repeated: bool = False
    """A tuple of any length."""
    help: str = ""
    unit: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] = ()
    none: str = "none"
    """The word for None in texts; `none` itself is always understood."""

    @property
    def kebab(self) -> str:
        """The name in text forms and on the command line."""
        return self.name.replace("_", "-")

    @property
    def expects(self) -> str:
        """What values are right, in words."""
        if self.choices:
            what = "one of " + ", ".join(str(_plain(choice)) for choice in self.choices)
        else:
            what = {bool: "true or false", int: "a whole number", float: "a number"}.get(self.scalar, "a text")
        if self.minimum is not None and self.maximum is not None:
            what += f" from {self.minimum:g} to {self.maximum:g}"
        elif self.minimum is not None:
            what += f" of at least {self.minimum:g}"
        elif self.maximum is not None:
            what += f" of at most {self.maximum:g}"
        what += f" {self.unit}" if self.unit else ""
        what = f"a list, each {what}" if self.repeated else what
        return f"{what}, or {self.none}" if self.optional else what


def option(
    default: Any,
    *,
    help: str,
    unit: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Iterable[Any] = (),
    none: str = "none",
) -> Any:
    """A dataclass field that is an option. Choices may be left out where the type is an Enum or a Literal."""
    facts = {
        "help": help,
        "unit": unit,
        "minimum": minimum,
        "maximum": maximum,
        "choices": tuple(choices),
        "none": none,
    }
    return dataclasses.field(default=default, metadata={_METADATA: facts})


def described(cls: type) -> Mapping[str, OptionInfo]:
    """The options of a dataclass by name, in order of definition."""
    hints = typing.get_type_hints(cls)
    return {f.name: _describe(cls, f, hints[f.name]) for f in dataclasses.fields(cls) if f.init}


def _describe(cls: type, field: dataclasses.Field[Any], hint: Any) -> OptionInfo:
    facts = dict(field.metadata.get(_METADATA, {}))
    optional, hint = _without_none(hint)
    repeated = typing.get_origin(hint) is tuple
    if repeated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is Literal:
        facts["choices"] = facts.get("choices") or typing.get_args(hint)
        hint = type(facts["choices"][0])
    elif isinstance(hint, type) and issubclass(hint, Enum):
        facts["choices"] = tuple(hint)
    elif hint not in _SCALARS:
        raise OptionError(
            f"an option cannot have the type {hint!r}",
            where=f"{cls.__name__}.{field.name}",
            next_step="use int, float, bool, str, an Enum or a Literal, a tuple of those, or one of them or None",
        )
    if field.default is MISSING:
        raise OptionError("an option needs a default", where=f"{cls.__name__}.{field.name}")
    return OptionInfo(
        name=field.name, scalar=hint, default=field.default, optional=optional, repeated=repeated, **facts
    )


def _without_none(hint: Any) -> tuple[bool, Any]:
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return False, hint
    rest = [part for part in typing.get_args(hint) if part is not type(None)]
    # Two real alternatives are refused further on, as the union is no scalar type.
    return True, rest[0] if len(rest) == 1 else hint


def checked(info: OptionInfo, value: Any, where: str) -> Any:
    """The value, properly typed, or OptionError. An int does for a float, a list for a tuple, a value for an Enum."""
    if value is None and info.optional:
        return None
    if not info.repeated:
        return _checked_scalar(info, value, where)
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise _wrong(info, value, where)
    return tuple(_checked_scalar(info, item, where) for item in value)


def _checked_scalar(info: OptionInfo, value: Any, where: str) -> Any:
    kind: Any = info.scalar
    if issubclass(kind, Enum):
        found = [choice for choice in info.choices if value is choice or value == choice.value]
        if not found:
            raise _wrong(info, value, where)
        return found[0]
    if kind is float and type(value) is int:
        value = float(value)
    # type(), because True is an int to isinstance.
    if type(value) is not kind or (kind is float and math.isnan(value)):
        raise _wrong(info, value, where)
    out_of_bounds = (info.minimum is not None and value < info.minimum) or (
        info.maximum is not None and value > info.maximum
    )
    if out_of_bounds or (info.choices and value not in info.choices):
        raise _wrong(info, value, where)
    return value


def _wrong(info: OptionInfo, value: Any, where: str) -> OptionError:
    near = near_names(str(_plain(value)), [str(_plain(choice)) for choice in info.choices])
    return OptionError(
        f"option {info.name!r} cannot be {_plain(value)!r}: expected {info.expects}",
        where=where,
        next_step=f"did you mean {near}?" if near else None,
    )


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def near_names(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """The names most like a mistyped one, quoted and joined by `or`; empty when none is near."""
    return " or ".join(map(repr, difflib.get_close_matches(name, sorted(known), n=3, cutoff=cutoff)))


def from_mapping(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """A dataclass of options from values by name, hyphens or underscores; OptionError for unknown ones."""
    infos = described(cls)
    named = {str(key).replace("-", "_"): value for key, value in values.items()}
    for key in named:
        if key not in infos:
            raise unknown_option(key, infos, where)
    return cls(**{key: checked(infos[key], value, where) for key, value in named.items()})


def unknown_option(name: str, known: Iterable[str], where: str) -> OptionError:
    """The error for an option that does not exist, with the near names or all of them."""
    names = list(known)
    near = near_names(name, names)
    everything = f"the options are {', '.join(names)}" if names else "there are no options here"
    return OptionError(
        f"unknown option {name!r}", where=where, next_step=f"did you mean {near}?" if near else everything
    )


def normalise(instance: Any, where: str) -> None:
    """Check all options of a frozen dataclass from its `__post_init__`, and put each into its proper type."""
    for name, info in described(type(instance)).items():
        object.__setattr__(instance, name, checked(info, getattr(instance, name), where))
