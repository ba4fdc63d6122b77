"""Breaks long lines: one item a line inside brackets, so that a diff of a bucket shows the tensor that changed."""

from __future__ import annotations

import re

WIDTH = 110
_SHORT_ENOUGH = 40
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{},]|[^"()\[\]{},]+')
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def fold(line: str, indent: int) -> list[str]:
    """The line, or its pieces when it is too long. Only commas inside brackets break, so strings stay whole."""
    if indent + len(line) <= WIDTH:
        return [" " * indent + line]
    lines, head = [], ""
    for piece in _top_level(line):
        items = _items(piece[1:-1]) if len(piece) > _SHORT_ENOUGH and piece[0] in _CLOSING else []
        if not items or (len(items) == 1 and items[0][0] not in _CLOSING):
            head += piece
            continue
        lines.append(" " * indent + head + piece[0])
        for item in items:
            lines += fold(item + ",", indent + 2)
        head = piece[-1]
    return [*lines, " " * indent + head]


def _top_level(line: str) -> list[str]:
    """The line in pieces: text between brackets, and whole bracketed groups."""
    pieces, depth = [""], 0
    for piece in _PIECE.findall(line):
        if piece in _CLOSING:
            if depth == 0:
                pieces.append("")
            depth += 1
        pieces[-1] += piece
        if piece in _CLOSING.values():
            depth -= 1
            if depth == 0:
                pieces.append("")
    return [piece for piece in pieces if piece]


def _items(inside: str) -> list[str]:
    items, depth = [""], 0
    for piece in _PIECE.findall(inside):
        depth += (piece in _CLOSING) - (piece in _CLOSING.values())
        if piece == "," and depth == 0:
            items.append("")
        else:
            items[-1] += piece
    return [item.strip() for item in items if item.strip()]
