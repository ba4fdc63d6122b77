"""The text form of options, both ways: `cap-mb=25 mode=concat caps-mb=1,25 label="two words"`.

Assignments are separated by blanks, elements of a list by commas. Text in JSON quotes is taken to the letter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from counterpoint.errors import OptionError
from counterpoint.options.fields import OptionInfo, described, unknown_option

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_ASSIGNMENT = re.compile(rf'\s*([A-Za-z][\w-]*)=((?:{_QUOTED}|[^\s"{{}}])*)(?=\s|$)')
_ELEMENT = re.compile(rf'({_QUOTED}|[^,"]*)(,|$)')
_PLAIN = re.compile(r"[\w.:/+*@-]+")
_NONE = "none"
_EMPTY = "()"
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


def fields_text(instance: Any, *, defaults: bool = False) -> str:
    """The options of a dataclass as text, in order of definition; those at their default only when asked."""
    pairs = ((info, getattr(instance, name)) for name, info in described(type(instance)).items())
    return " ".join(
        f"{info.kebab}={value_text(info, value)}" for info, value in pairs if defaults or value != info.default
    )


def value_text(info: OptionInfo, value: Any) -> str:
    """One value as text."""
    if value is None:
        return info.none
    if info.repeated:
        return ",".join(_scalar_text(info, item) for item in value) if value else _EMPTY
    return _scalar_text(info, value)


def _scalar_text(info: OptionInfo, value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # 25.0 reads better as 25, and comes back as the same float.
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    text = str(value)
    plain = _PLAIN.fullmatch(text) and text not in (_NONE, info.none)
    return text if info.scalar is not str or plain else json.dumps(text)


def assignments_of(text: str, where: str) -> Iterator[tuple[str, str]]:
    """The `name=value` pairs of a text, values still as text."""
    position, seen = 0, set()
    end = len(text.rstrip())
    while position < end:
        found = _ASSIGNMENT.match(text, position)
        if found is None:
            raise OptionError(
                f"cannot read {text[position:].strip()!r}",
                where=where,
                next_step='write options as name=value, separated by blanks; put text with blanks into "quotes"',
            )
        name = found[1].replace("-", "_")
        if name in seen:
            raise OptionError(f"option {name!r} is given twice", where=where, next_step="give it once")
        seen.add(name)
        yield name, found[2]
        position = found.end()


def fields_from_text(cls: type, text: str, where: str) -> dict[str, Any]:
    """The values that a text gives to options of a dataclass, by name; bounds are checked by the dataclass."""
    infos = described(cls)
    values: dict[str, Any] = {}
    for name, written in assignments_of(text, where):
        if name not in infos:
            raise unknown_option(name, infos, where)
        values[name] = value_from_text(infos[name], written, where)
    return values


def value_from_text(info: OptionInfo, text: str, where: str) -> Any:
    """One value from its text, as an environment variable or a text form writes it."""
    if info.optional and text in (_NONE, info.none):
        return None
    if not info.repeated:
        return _scalar_from_text(info, text, where)
    if text == _EMPTY:
        return ()
    elements: list[Any] = []
    position = 0
    while True:
        found = _ELEMENT.match(text, position)
        if found is None:
            raise _unreadable(info, text, where)
        elements.append(_scalar_from_text(info, found[1], where))
        position = found.end()
        if not found[2]:
            return tuple(elements)


def _scalar_from_text(info: OptionInfo, text: str, where: str) -> Any:
    if text.startswith('"'):
        try:
            text = json.loads(text)
        except ValueError:
            raise _unreadable(info, text, where) from None
    if info.scalar is bool:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise _unreadable(info, text, where)
    if info.scalar in (int, float):
        try:
            return info.scalar(text)
        except ValueError:
            raise _unreadable(info, text, where) from None
    return _choice_from_text(info, text)


def _choice_from_text(info: OptionInfo, text: str) -> Any:
    """Enums may have values that are no text; what matches none is left for the check to refuse."""
    for choice in info.choices:
        if isinstance(choice, Enum) and str(choice.value) == text:
            return choice
    return text


def _unreadable(info: OptionInfo, text: str, where: str) -> OptionError:
    return OptionError(f"option {info.name!r} cannot be {text!r}: expected {info.expects}", where=where)
