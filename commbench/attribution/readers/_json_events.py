"""A JSON file of events, read in blocks: no more of it in memory than a few of them, at the speed of a C decoder.

The file is an object one of whose values is the list of events, wherever it stands, or that list alone.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO

_BLOCK = 1 << 18  # bytes read at once: their events stay in the cache
_LONGEST = 1 << 24  # characters: an event that is not whole after so many is broken
_BLANK = re.compile(r"[\s,]*")
_NEXT = re.compile(r"\}\s*,\s*(?=\{)")  # between two events, or two objects within one
_BROKEN = (ValueError, RecursionError)  # what the decoder raises
_decode = json.JSONDecoder(strict=False).raw_decode  # not strict: names hold tabs and line ends
# Decoders of a whole list, the next one for what the one before refuses.
_WHOLE: tuple[Callable[[str], Any], ...] = (partial(json.loads, strict=False),)
with suppress(ImportError):
    from orjson import loads

    _WHOLE = (loads, *_WHOLE)  # faster, and strict


class Events:
    """The events of a stream in lists, to be gone through once.

    Then `rest` has the file's other values that were wanted, `unreadable` is the number of events that are no JSON,
    and `complete` says whether the file ended as it should.
    """

    def __init__(self, stream: BinaryIO, key: str, wanted: Collection[str] = ()) -> None:
        self.rest: dict[str, Any] = {}
        self.unreadable = 0
        self.complete = False
        self._stream = stream
        self._key = key
        self._wanted = wanted
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._text = ""
        self._at = 0  # all before it is done with
        self._ended = False  # there is no more than the text

    def __iter__(self) -> Iterator[list[Any]]:
        if self._next() == "[":
            yield from self._list()
            return
        self._at += 1
        while self._next() == '"':
            found, key = self._value()
            if not found or self._next() != ":":
                return
            self._at += 1
            if self._next() == "[" and key == self._key:
                yield from self._list()
                if not self.complete:
                    return
                self.complete = False
                continue
            found, value = self._value()
            if not found:
                return
            if key in self._wanted:
                self.rest[key] = value
        self.complete = self._next() == "}"

    def _more(self, blocks: int = 1) -> bool:
        """Take in more text; return whether there may be any."""
        if self._ended:
            return False
        data = self._stream.read(blocks * _BLOCK)
        self._ended = not data
        self._text = self._text[self._at :] + self._decoder.decode(data, self._ended)
        self._at = 0
        return True

    def _next(self) -> str:
        """Go on to what is no blank; return its first character, nothing at the end of the file."""
        while not self._skipped() and self._more():
            pass
        return self._text[self._at : self._at + 1]

    def _skipped(self) -> bool:
        """Skip the blanks of this text; return whether something follows."""
        found = _BLANK.match(self._text, self._at)
        assert found  # it fits nothing, too
        self._at = found.end()
        return self._at < len(self._text)

    def _value(self) -> tuple[bool, Any]:
        """Decode the value that begins here; return whether it is one, and it."""
        blocks = 1
        while True:
            try:
                value, end = _decode(self._text, self._at)
            except _BROKEN:
                pass
            else:
                if end < len(self._text) or self._ended:  # else a number may go on
                    self._at = end
                    return True, value
            if not self._more(blocks):
                return False, None
            blocks *= 2

    def _list(self) -> Iterator[list[Any]]:
        self._at += 1
        blocks = 1
        while True:
            cut = self._last()
            block = self._whole(cut)
            if block is None:
                block = self._one_by_one()
            else:
                self._at = cut
            yield block
            if self.complete:
                return
            blocks = 1 if block else 2 * blocks  # one event may be longer than many
            if not self._more(blocks):
                yield self._one_by_one()
                return

    def _last(self) -> int:
        """Return where the last object of this text that another one follows ends."""
        end = len(self._text)
        while (end := self._text.rfind("}", self._at, end)) >= 0:
            if _NEXT.match(self._text, end):
                return end + 1
        return self._at

    def _whole(self, cut: int) -> list[Any] | None:
        """Return the events until `cut`; None where it lies within one, or behind the list: brackets do not match."""
        self._skipped()
        if cut <= self._at:
            return None
        text = f"[{self._text[self._at : cut]}]"
        for decode in _WHOLE:
            with suppress(*_BROKEN):
                return decode(text)
        return None

    def _one_by_one(self) -> list[Any]:
        """Return the events of this text, each decoded by itself, until the list ends or one is not whole."""
        events: list[Any] = []
        while self._skipped():
            if self._text[self._at] == "]":
                self._at += 1
                self.complete = True
                break
            try:
                event, self._at = _decode(self._text, self._at)
            except _BROKEN:
                if not self._ended and len(self._text) - self._at < _LONGEST:
                    break
                following = _NEXT.search(self._text, self._at)
                if following is None:
                    self._at = len(self._text)
                    break
                self.unreadable += 1
                self._at = following.end()
            else:
                events.append(event)
        return events
