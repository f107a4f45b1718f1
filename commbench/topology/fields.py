"""The values of a description in YAML, asked for by what they have to be; an error says the line that is not so."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from commbench.errors import unknown_name
from commbench.topology import hosts
from commbench.topology.figures import MOST_GBPS, MOST_US, gbps_of, us_of
from commbench.topology.reading import TopologyError
from commbench.topology.validate import hosts_at
from commbench.topology.yaml_tree import NUMBER, Yaml

_WHOLE = re.compile(r"[-+]?\d{1,18}", re.ASCII)


class Fields:
    """The reading of one file; `named` counts the names that its lists stand for."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.named = 0

    def error(self, line: int, text: str) -> TopologyError:
        """Return the error to raise about a line."""
        return TopologyError(self.source, line, text)

    def mapping(self, it: Yaml, what: str, known: Collection[str] = ()) -> Mapping[str, Yaml]:
        """Return the keys of `it` with their values; all are `known`, if any are."""
        if it.entries is None:
            raise self.error(it.line, f"{what} is keys with values, {{key: value}}, not {it.shown}")
        for key in it.entries:
            if known and key not in known:
                raise self.error(it.keys[key], f"{what}: {unknown_name('key', key[:60], known)}")
        return it.entries

    def items(self, it: Yaml, what: str) -> Sequence[Yaml]:
        """Return the items of a list."""
        if it.items is None:
            raise self.error(it.line, f"{what} is a list, [a, b], not {it.shown}")
        return it.items

    def word(self, it: Yaml | None, what: str, default: str = "") -> str:
        """Return a word, or a number as it is written."""
        if it is None:
            return default
        if it.text is None:
            raise self.error(it.line, f"{what} is a word, not {it.shown}")
        return it.text

    def choice(self, it: Yaml | None, what: str, known: Sequence[str], default: str) -> str:
        """Return one of the `known` words."""
        value = self.word(it, what, default)
        if it is not None and value not in known:
            raise self.error(it.line, str(unknown_name(what, value[:60], known)))
        return value

    def truth(self, it: Yaml | None, what: str) -> bool:
        """Return true or false, which stands where nothing does."""
        if it is None:
            return False
        if it.quoted or it.text not in ("true", "false"):
            raise self.error(it.line, f"{what} is true or false, not {it.shown}")
        return it.text == "true"

    def whole(self, it: Yaml | None, what: str, least: int, most: int, default: int) -> int:
        """Return a whole number from `least` to `most`."""
        if it is None:
            return default
        if not it.quoted and it.text is not None and _WHOLE.fullmatch(it.text) and least <= int(it.text) <= most:
            return int(it.text)
        raise self.error(it.line, f"{what} is a whole number from {least} to {most:,}, not {it.shown}")

    def gbps(self, it: Yaml | None, what: str, cables: int = 1) -> float | None:
        """Return the Gb/s of `cables` cables together."""
        rule = f"{what} is a number of Gb/s, of all cables in one direction"
        value = self._figure(it, rule, gbps_of)
        if it is not None and value is not None and not 0 < value <= MOST_GBPS * cables:
            known = f"above 0, and at most {MOST_GBPS:,} a cable"
            remedy = "leave out what is not known" if value <= 0 else "give Gb/s, not Mb/s, and all `cables`"
            raise self.error(it.line, f"{rule}, {known}, not {it.shown}: {remedy}")
        return value

    def us(self, it: Yaml | None, what: str) -> float | None:
        """Return microseconds."""
        rule = f"{what} is a number of microseconds, one way"
        value = self._figure(it, rule, us_of)
        if it is not None and value is not None and not 0 <= value <= MOST_US:
            remedy = "leave out what is not known" if value < 0 else "give microseconds, not nanoseconds"
            raise self.error(it.line, f"{rule}, from 0 to {MOST_US:,} (a second), not {it.shown}: {remedy}")
        return value

    def _figure(self, it: Yaml | None, rule: str, convert: Any) -> float | None:
        if it is None or (it.text in ("null", "~") and not it.quoted):
            return None
        text = it.text if it.text is not None and len(it.text) <= 60 else ""
        if NUMBER.fullmatch(text) and not it.quoted:
            return float(text)
        converted = float(text) if NUMBER.fullmatch(text) else convert(text)
        remedy = "a plain number" if converted is None else f"{converted:g}"
        raise self.error(it.line, f"{rule}, without a unit, not {it.shown}: write {remedy}")

    def names(self, it: Yaml, what: str) -> tuple[str, ...]:
        """Return the names of a list of hosts, or of a list of such."""
        found: list[str] = []
        for part in [it] if it.items is None else it.items:
            if not part.text:
                raise self.error(part.line, f'{what} is a list of names, as [a1, "b[01-04]"], not {part.shown}')
            found += hosts_at(part.text, self.source, part.line)
            self._count(found, part.line)
        self.named += len(found)
        return tuple(found)

    def _count(self, found: Sequence[str], line: int) -> None:
        if self.named + len(found) > hosts.MOST:
            raise self.error(line, f"a description names at most {hosts.MOST:,} nodes and switches, and this one more")

    def annotations(self, entries: Mapping[str, Yaml], what: str) -> dict[str, Any]:
        """Return what others say of a switch or block: annotations as they are, topograph's labels under that word."""
        kept: dict[str, Any] = {}
        if "annotations" in entries:
            kept |= {
                key: one.value for key, one in self.mapping(entries["annotations"], f"{what}: annotations").items()
            }
        if "labels" in entries:
            kept["labels"] = {key: one.value for key, one in self.mapping(entries["labels"], f"{what}: labels").items()}
        return kept
