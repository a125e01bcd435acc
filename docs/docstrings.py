"""A griffe extension that reads docstrings as this package writes them.

Roles, such as :func:`ffnmem.load`, become links where the manual has the name. Parameters that are described together
("layer, neuron: which") are described one by one, each with its own type and default. "Raises: …" in one line begins a
paragraph, not a section, and what continues an entry may be indented by less than griffe wants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|attr|mod|data|exc):`~?([^`]+)`")
SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$")
PARAGRAPH = re.compile(r"^(?:Args|Raises|Returns): \S")
TOGETHER = re.compile(r"^    (\w+(?:, \w+)+): (.*)")
CONTINUED = re.compile(r"^ {5,}\S")
SHORT = re.compile(r"^ {5,7}\S")
UNNAMED = re.compile(r"^    (?!\w+: )\S")


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for every object of the package, when all of it was read."""
        if obj.docstring is None:
            return
        public = frozenset(obj.package.exports or ())
        text = ROLE.sub(lambda found: linked(found[1], public), obj.docstring.value)
        obj.docstring.value = "\n".join(one_by_one(text.splitlines()))


def linked(name: str, public: frozenset[str]) -> str:
    bare = name.removeprefix("ffnmem.")
    return f"[`{name}`][ffnmem.{bare}]" if bare in public else f"`{name}`"


def one_by_one(lines: list[str]) -> Iterator[str]:
    """The lines of a docstring as griffe reads them."""
    section, paragraph, i = "", False, 0
    while i < len(lines):
        line, i = lines[i], i + 1
        if line and not line.startswith(" "):
            header = SECTION.match(line)
            section, paragraph = header[1] if header else "", bool(PARAGRAPH.match(line))
        paragraph = paragraph and bool(line)
        found = TOGETHER.match(line) if section in ("Args", "Attributes") else None
        if found is not None:
            more = []
            while i < len(lines) and CONTINUED.match(lines[i]):
                more.append(lines[i])
                i += 1
            for name in found[1].split(", "):
                yield from [f"    {name}: {found[2]}", *more]
        elif paragraph:
            yield line.lstrip()
        elif section and (SHORT.match(line) or (section == "Raises" and UNNAMED.match(line))):
            yield f"        {line.lstrip()}"
        else:
            yield line
