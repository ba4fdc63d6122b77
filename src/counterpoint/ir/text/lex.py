"""Tokens of the graph text, a cursor over them, and errors that point at the place."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right

from counterpoint.errors import GraphFileError

_TOKEN = re.compile(
    r"""
    (?P<skip>[ \t\r]+|\#[^\n]*)
  | (?P<line>\n)
  | (?P<node>%[^\W\d]\w*)
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<number>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+)
  | (?P<word>[^\W\d]\w*(?:\.\w+)*)
  | (?P<mark>\.\.\.|\*\*|//|==|!=|<=|>=|[()\[\]{}=:,+\-*/<>@?])
    """,
    re.VERBOSE | re.ASCII,
)
# Source lines hold any character, so a location line is one token: only its own reader looks inside.
_LOCATION = re.compile(r"[ \t]*(at [^\n]*)")
_NESTING = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def quote(text: str) -> str:
    """A string as it stands in the text: double quotes, JSON escapes."""
    return json.dumps(text)


class Cursor:
    """Walks over the tokens of a text. A line ends only outside brackets, so long calls may span several lines."""

    def __init__(self, text: str, *, first_line: int = 1, source: str = "graph text") -> None:
        self._text = text
        self._first_line = first_line
        self._source = source
        self._kinds: list[str] = []
        self._words: list[str] = []
        self._starts: list[int] = []
        self._next = 0
        self.kind = self.word = ""
        self._lex()
        self.kind = self._kinds[0]
        self.word = self._words[0]

    def _lex(self) -> None:
        text, at, depth, fresh_line = self._text, 0, 0, True
        while at < len(text):
            match = (_LOCATION.match(text, at) if fresh_line and depth == 0 else None) or _TOKEN.match(text, at)
            if match is None:
                raise self.error("a node, a value or a known sign", at=at)
            kind = match.lastgroup or "location"
            fresh_line = kind == "line"
            if kind == "mark":
                depth = max(0, depth + _NESTING.get(match.group(), 0))
            if kind != "skip" and not (kind == "line" and (depth or self._ends_line())):
                self._add(kind, match.group(1) if kind == "location" else match.group(), at)
            at = match.end()
        if not self._ends_line():
            self._add("line", "\n", len(text))
        self._add("end", "end of text", len(text))

    def _add(self, kind: str, word: str, start: int) -> None:
        self._kinds.append(kind)
        self._words.append(word)
        self._starts.append(start)

    def _ends_line(self) -> bool:
        return not self._kinds or self._kinds[-1] == "line"

    @property
    def position(self) -> int:
        """Where the next token starts; hand it to `error(at=...)`."""
        return self._starts[self._next]

    def since(self, start: int) -> str:
        """The text from a position up to the next token."""
        return self._text[start : self.position].rstrip()

    def take(self) -> str:
        """Step over the next token and return it."""
        word = self.word
        if self.kind != "end":
            self._next += 1
            self.kind, self.word = self._kinds[self._next], self._words[self._next]
        return word

    def take_kind(self, kind: str, expected: str) -> str:
        """Step over a token of this kind, or say what was expected."""
        if self.kind != kind:
            raise self.error(expected)
        return self.take()

    def at(self, word: str) -> bool:
        """Whether the next token is this word or sign (never the inside of a string)."""
        return self.word == word and self.kind in ("word", "mark")

    def next_is(self, word: str) -> bool:
        """Whether this sign comes after the next token."""
        return self._next + 1 < len(self._words) and self._words[self._next + 1] == word

    def accept(self, word: str) -> bool:
        """Step over this word or sign if it comes next."""
        if self.at(word):
            self.take()
            return True
        return False

    def expect(self, word: str) -> None:
        """Step over this word or sign, or say that it was expected."""
        if not self.accept(word):
            raise self.error(f"`{word}`")

    def items(self, close: str) -> bool:
        """For loops over comma-separated items: False when `close` has been stepped over."""
        return not self.accept(close)

    def comma(self, close: str) -> None:
        """After an item: a comma, or the closing bracket in sight."""
        if not self.accept(",") and not self.at(close):
            raise self.error(f"`,` or `{close}`")

    def close(self, bracket: str) -> None:
        """Step over a closing bracket, and over the comma before it that a folded line has."""
        self.accept(",")
        self.expect(bracket)

    def end_line(self) -> None:
        """Step over the end of a line."""
        self.take_kind("line", "the end of the line")

    def string(self, expected: str = "a quoted string") -> str:
        """Step over a string and return what it says."""
        start = self.position
        raw = self.take_kind("string", expected)
        try:
            value: str = json.loads(raw)
        except ValueError as problem:
            raise self.error("a string with JSON escapes", at=start) from problem
        return value

    def error(
        self, expected: str, *, at: int | None = None, problem: str | None = None, next_step: str | None = None
    ) -> GraphFileError:
        """The error for this place: the line, a caret under the column, what was expected, what to do."""
        at = self.position if at is None else at
        starts = [0, *(m.end() for m in re.finditer("\n", self._text))]
        row = bisect_right(starts, at) - 1
        line = self._text[starts[row] :].split("\n", 1)[0]
        column = at - starts[row]
        if problem is None:
            token = bisect_left(self._starts, at)
            known = token < len(self._starts) and self._starts[token] == at
            found = self._words[token] if known else line[column : column + 1]
            problem = f"expected {expected}, found {_shown(found)}"
        number = self._first_line + row
        shown, caret = _window(line, column)
        prefix = f"  {number} | "
        return GraphFileError(
            f"{self._source} cannot be read: {problem}\n{prefix}{shown}\n{' ' * (len(prefix) + caret)}^",
            where=f"{self._source}, line {number}, column {column + 1}",
            next_step=next_step or "correct this line, or write the file again with `save_graph`",
        )


def _shown(found: str) -> str:
    if found == "\n":
        return "the end of the line"
    return found if found == "end of text" else f"`{found[:60]}`"


def _window(line: str, column: int, width: int = 100) -> tuple[str, int]:
    """The part of a long line around a column, and the column within it."""
    start = max(0, column - width // 2) if len(line) > width else 0
    return line[start : start + width], column - start
