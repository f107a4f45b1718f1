"""XML into elements that know their line. Nothing is expanded or fetched: a DTD or an entity is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl, Locator

from commbench.topology.reading import TopologyError

DEEPEST = 100  # elements within elements
MOST_ELEMENTS = 1_000_000


@dataclass(eq=False)
class Element:
    """An element: its name, its attributes, what is in it, and the line that it begins in."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def get(self, name: str, default: str = "") -> str:
        """Return an attribute."""
        return self.attributes.get(name, default)

    def number(self, name: str, default: int = 0) -> int:
        """Return an attribute that is a whole number, written in tens or as 0x...; `default` if it is none."""
        text = self.get(name).strip()
        try:
            return int(text, 16 if text.lower().startswith("0x") else 10) if len(text) < 19 else default
        except ValueError:
            return default

    def named(self, tag: str) -> list[Element]:
        """Return the children with this name."""
        return [child for child in self.children if child.tag == tag]

    def walk(self) -> Iterator[Element]:
        """Go through the element and all within it, in the order of the file."""
        stack = [self]
        while stack:
            here = stack.pop()
            yield here
            stack += reversed(here.children)


def parse(text: str, source: str) -> Element:
    """Return the outermost element of `text`; TopologyError where it is not well-formed, or has a DTD or entities."""
    from xml.sax import SAXException, SAXParseException

    from defusedxml import DefusedXmlException
    from defusedxml.sax import parseString

    handler = _Handler(source)
    body = re.sub(r'^(\s*<\?xml[^>]*?)\s+encoding="[^"]*"', r"\1", text)  # it has been decoded
    try:
        parseString(body.encode("utf-8", "replace"), handler, forbid_dtd=True)
    except DefusedXmlException as refused:
        text = f"a description has no DTD and no entities ({type(refused).__name__}); take them out"
        raise TopologyError(source, handler.line, text) from None
    except SAXParseException as wrong:
        raise TopologyError(source, wrong.getLineNumber(), f"the XML is broken: {wrong.getMessage()}") from None
    except (SAXException, UnicodeError, ValueError) as wrong:
        raise TopologyError(source, handler.line, f"the XML is broken: {wrong}") from None
    if handler.root is None:
        raise TopologyError(source, None, "there is no element in this XML")
    return handler.root


class _Handler(ContentHandler):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.root: Element | None = None
        self.stack: list[Element] = []
        self.count = 0
        self.locator: Locator | None = None

    @property
    def line(self) -> int | None:
        return self.locator.getLineNumber() if self.locator else None

    def setDocumentLocator(self, locator: Locator) -> None:
        self.locator = locator

    def startElement(self, name: str, attrs: AttributesImpl) -> None:
        self.count += 1
        if len(self.stack) >= DEEPEST or self.count > MOST_ELEMENTS:
            text = f"a description has at most {MOST_ELEMENTS:,} elements, and {DEEPEST} within one another"
            raise TopologyError(self.source, self.line, text)
        element = Element(name, dict(attrs.items()), self.line or 0)
        if self.stack:
            self.stack[-1].children.append(element)
        else:
            self.root = element
        self.stack.append(element)

    def endElement(self, name: str) -> None:
        self.stack.pop()

    def characters(self, content: str) -> None:
        if self.stack:
            self.stack[-1].text += content
