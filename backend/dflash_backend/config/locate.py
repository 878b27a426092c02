"""Where each key of a TOML text stands, so that an error can name its line; tomllib does not keep that."""

from __future__ import annotations

import contextlib
import re

Key = tuple[str | int, ...]
"""A path to a value: table and key names, and indices into arrays."""

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(r"'[^'\n]*'")
_LONG_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''.*?'{3,5}", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]*")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")


class _StopError(Exception):
    """The text is no valid TOML from here on."""


class KeyLines:
    """Lines (from 1) of the keys of one text. Never raises: what it cannot read it does not know."""

    def __init__(self, text: str) -> None:
        self.duplicates: list[tuple[Key, int, int]] = []
        """Keys or tables given twice: (key, first line, second line)."""
        self._text = text
        self._lines: dict[Key, int] = {}
        self._counts: dict[Key, int] = {}
        self._headers: set[Key] = set()
        self._newlines = [m.start() for m in re.finditer("\n", text)]
        with contextlib.suppress(_StopError, RecursionError):
            self._document()

    def has(self, key: Key) -> bool:
        """True when ``key`` itself stands in the text."""
        return key in self._lines

    def line(self, key: Key) -> int | None:
        """The line of ``key``, or of the nearest thing around it that is known."""
        while key:
            if key in self._lines:
                return self._lines[key]
            key = key[:-1]
        return None

    def _at(self, position: int) -> int:
        low, high = 0, len(self._newlines)
        while low < high:
            middle = (low + high) // 2
            if self._newlines[middle] < position:
                low = middle + 1
            else:
                high = middle
        return low + 1

    def _skip(self, position: int) -> int:
        match = _SPACE.match(self._text, position)
        return match.end() if match else position

    def _document(self) -> None:
        prefix: Key = ()
        position = self._skip(0)
        while position < len(self._text):
            if self._text[position] == "[":
                prefix, position = self._header(position)
            else:
                position = self._pair(prefix, position)
            position = self._skip(position)

    def _header(self, position: int) -> tuple[Key, int]:
        start = position
        array = self._text.startswith("[[", position)
        names, position = self._names(self._skip(position + (2 if array else 1)))
        closing = "]]" if array else "]"
        position = self._skip(position)
        if not self._text.startswith(closing, position):
            raise _StopError
        key: Key = ()
        for index, name in enumerate(names):
            key = (*key, name)
            last = index == len(names) - 1
            if last and array:
                self._counts[key] = self._counts.get(key, -1) + 1
                self._lines.setdefault(key, self._at(start))
            if key in self._counts:
                key = (*key, self._counts[key])
        line = self._at(start)
        if not array and key in self._headers:
            self.duplicates.append((key, self._lines[key], line))
        self._headers.add(key)
        if array:
            self._lines[key] = line
        else:
            self._lines.setdefault(key, line)
        return key, position + len(closing)

    def _names(self, position: int) -> tuple[list[str], int]:
        names: list[str] = []
        while True:
            position = self._skip(position)
            for pattern in (_BARE, _BASIC, _LITERAL):
                match = pattern.match(self._text, position)
                if match:
                    break
            else:
                raise _StopError
            raw = match[0]
            names.append(
                raw if pattern is _BARE else raw[1:-1] if pattern is _LITERAL else _unescape(raw[1:-1])
            )
            position = self._skip(match.end())
            if not self._text.startswith(".", position):
                return names, position
            position += 1

    def _pair(self, prefix: Key, position: int) -> int:
        line = self._at(position)
        names, position = self._names(position)
        key = prefix
        for name in names[:-1]:
            key = (*key, name)
            self._lines.setdefault(key, line)
        key = (*key, names[-1])
        if key in self._lines:
            self.duplicates.append((key, self._lines[key], line))
        self._lines.setdefault(key, line)
        if not self._text.startswith("=", position):
            raise _StopError
        return self._value(key, self._skip(position + 1))

    def _value(self, key: Key, position: int) -> int:
        opening = self._text[position : position + 1]
        if opening in ("[", "{"):
            return self._collection(key, position, "]" if opening == "[" else "}")
        for pattern in (_LONG_BASIC, _LONG_LITERAL, _BASIC, _LITERAL, _SCALAR):
            match = pattern.match(self._text, position)
            if match and match.end() > position:
                return match.end()
        raise _StopError

    def _collection(self, key: Key, position: int, closing: str) -> int:
        index = 0
        position = self._skip(position + 1)
        while not self._text.startswith(closing, position):
            if closing == "]":
                self._lines.setdefault((*key, index), self._at(position))
                position = self._value((*key, index), position)
            else:
                position = self._pair(key, position)
            index += 1
            position = self._skip(position)
            if self._text.startswith(",", position):
                position = self._skip(position + 1)
            elif not self._text.startswith(closing, position):
                raise _StopError
        return position + 1


def _unescape(text: str) -> str:
    plain = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}

    def one(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        if code is None:
            return plain.get(match[3], match[3])
        number = int(code, 16)
        return chr(number) if number < 0x110000 else ""

    return _ESCAPE.sub(one, text)
