"""From views to one HTML file that needs nothing else: no network, no framework."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from counterpoint.errors import CounterpointError
from counterpoint.report.page.packing import Strings, packed_view
from counterpoint.report.page.views import View

SCRIPTS = ("data.js", "drawing.js", "page.js")
# A browser ends a script element at these wherever they stand, and older ones end a line at the last two.
_ESCAPED = "<>&\u2028\u2029"


def render_page(views: Sequence[View], title: str = "Counterpoint timeline") -> str:
    """The page of one or several graphs, which a field on the page chooses from."""
    if not views:
        raise CounterpointError("there is nothing to draw", where="timeline page", next_step="give at least one view")
    strings = Strings()
    packed = [packed_view(view, strings) for view in views]
    style = _static("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_static, SCRIPTS)) + "})();\n"
    parts = {
        "TITLE": html.escape(title),
        "STYLE": style,
        "STYLE_HASH": _hash(style),
        "SCRIPT": script,
        "SCRIPT_HASH": _hash(script),
        "DATA": embedded({"schema": 1, "views": packed, "strings": strings.texts}),
    }
    page = _static("page.html")
    # Piece by piece, so that nothing which looks like a mark in the data or the title is ever replaced.
    pieces = page.split("@")
    return "".join(parts.get(piece, f"@{piece}@") if number % 2 else piece for number, piece in enumerate(pieces))


def embedded(data: Any) -> str:
    """JSON that is safe inside a script element, whatever names and paths it holds."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.translate({ord(character): f"\\u{ord(character):04x}" for character in _ESCAPED})


def _static(name: str) -> str:
    return (files(__package__) / "static" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
