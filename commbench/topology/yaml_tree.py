"""YAML as a tree that knows its lines, for descriptions that anybody may have written.

Nothing is built of what a file names: no aliases, which let a few lines stand for gigabytes, no tags, no depth or size
without an end. A scalar keeps its text, so that a node called `no`, `010` or `1e3` keeps its name; who wants a number
asks for one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from commbench.errors import UsageError
from commbench.topology.reading import TopologyError

LARGEST = 1 << 22  # characters: 100,000 GPUs are some ten thousand lines
DEEPEST = 16  # lists and mappings in one another
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map")}
_INT = re.compile(r"[-+]?[0-9]+")
NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "~": None, "": None}
_LONGEST_NUMBER = 400  # digits: Python's own limit is far above


@dataclass(frozen=True)
class Yaml:
    """A place in a file: a scalar with its `text`, a list with `items`, or a mapping with `entries`."""

    line: int
    text: str | None = None
    quoted: bool = False
    items: list[Yaml] | None = None
    entries: dict[str, Yaml] | None = None
    keys: dict[str, int] = field(default_factory=dict)  # the line of each key of a mapping

    @cached_property
    def value(self) -> Any:
        """The place as plain Python: dict, list, str, int, float, bool or None."""
        if self.entries is not None:
            return {key: one.value for key, one in self.entries.items()}
        if self.items is not None:
            return [one.value for one in self.items]
        text = self.text or ""
        if self.quoted or len(text) > _LONGEST_NUMBER:
            return text
        if text in _WORDS:
            return _WORDS[text]
        return int(text) if _INT.fullmatch(text) else float(text) if NUMBER.fullmatch(text) else text

    @property
    def shown(self) -> str:
        """What an error shows of it."""
        if self.text is None:
            return "a mapping" if self.entries is not None else "a list"
        text = self.text if len(self.text) <= 60 else f"{self.text[:57]}..."
        return repr(text) if self.quoted or not text.isprintable() else text or "nothing"


def load(text: str, source: str) -> Yaml:
    """Return the tree of the one document in `text`; raise TopologyError with the line of what is not taken."""
    try:
        import yaml
    except ImportError:
        raise UsageError("a description in YAML needs PyYAML: pip install 'commbench[topology]'") from None
    if len(text) > LARGEST:
        raise TopologyError(source, None, f"a description in YAML has at most {LARGEST >> 20} MiB, not {len(text):,} B")
    try:
        return _tree(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = " ".join(part for part in (error.context, error.problem) if part)
        raise TopologyError(source, mark.line + 1 if mark else None, f"this is no YAML: {why}") from None
    except yaml.YAMLError as error:
        raise TopologyError(source, None, f"this is no YAML: {str(error).splitlines()[0]}") from None


def _tree(events: Any, source: str) -> Yaml:
    """Fold the parser's events into a tree, without recursion."""
    import yaml

    root: Yaml | None = None
    above: list[tuple[Yaml, str | None]] = []  # each open list or mapping, and the key that waits for its value

    def add(one: Yaml) -> None:
        nonlocal root
        if not above:
            if root is not None:
                raise TopologyError(source, one.line, "a description is one document: take out the others")
            root = one
            return
        parent, key = above[-1]
        if parent.items is not None:
            parent.items.append(one)
        elif key is not None and parent.entries is not None:
            parent.entries[key] = one
            above[-1] = (parent, None)
        elif parent.entries is not None:
            if one.text is None:
                raise TopologyError(source, one.line, f"a key is a word, not {one.shown}")
            if one.text in parent.keys:
                first = parent.keys[one.text]
                raise TopologyError(source, one.line, f"{one.shown} stands here already, in line {first}; say it once")
            parent.keys[one.text] = one.line
            above[-1] = (parent, one.text)

    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise TopologyError(source, line, f"aliases (*{event.anchor}) are not taken; write out what it stands for")
        if (tag := getattr(event, "tag", None)) and tag != "!" and tag not in _TAGS:
            raise TopologyError(source, line, f"tags ({tag[:40]}) are not taken; take it out")
        if isinstance(event, yaml.ScalarEvent):
            add(Yaml(line, event.value, quoted=bool(event.style or tag)))
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(above) >= DEEPEST:
                raise TopologyError(source, line, f"lists and mappings are at most {DEEPEST} deep")
            mapping = isinstance(event, yaml.MappingStartEvent)
            one = Yaml(line, entries={}) if mapping else Yaml(line, items=[])
            if above and above[-1][0].entries is not None and above[-1][1] is None:
                raise TopologyError(source, line, f"a key is a word, not {one.shown}")
            add(one)
            above.append((one, None))
        elif isinstance(event, yaml.CollectionEndEvent):
            above.pop()
    return root or Yaml(1, "")


def quote(value: Any) -> str:
    """Return a word, a number or a truth as YAML that every version of YAML reads alike."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, int | float):
        text = repr(value)
        return text if "e" not in text or "." in text else text.replace("e", ".0e")  # 1e-05 is a word in YAML 1.1
    text = str(value)
    if _SAFE.fullmatch(text) and text.lower() not in _TAKEN:
        return text
    return '"' + "".join(_escaped(sign) for sign in text) + '"'


_SAFE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_TAKEN = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}  # words of YAML 1.1


def _escaped(sign: str) -> str:
    if sign in '"\\':
        return f"\\{sign}"
    if sign.isprintable():
        return sign
    return f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else f"\\U{ord(sign):08x}"
