"""A griffe extension that reads docstrings as this package writes them.

Roles, such as :func:`ffnmem.load`, become links where the manual has the name. Parameters that are described together
("layer, neuron: which") are described one by one, each with its own type and default. "Raises: …" in one line begins a
paragraph, not a section, and what continues an entry may be indented by less than griffe wants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
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
        text = ROLE.sub(lambda found: linked(found[1], public(obj.package)), obj.docstring.value)
        obj.docstring.value = "\n".join(one_by_one(text.splitlines()))


def public(package: griffe.Module) -> dict[str, str]:
    """Every public name, as users write it, and where it is defined: the top's, then the rooms', from their stubs.

    lazy_loader reads the stubs when a name is first asked for, so no ``__all__`` is there to be read.
    """
    found = {}
    for holder in (package, *package.modules.values()):
        if isinstance(holder.filepath, Path) and holder.filepath.with_suffix(".pyi").is_file():
            for name, member in holder.members.items():
                if member.is_alias and member.target_path.startswith("ffnmem.") and not name.startswith("_"):
                    found[f"{holder.path}.{name}"] = member.final_target.path
    return found


def linked(name: str, names: Mapping[str, str]) -> str:
    path = f"ffnmem.{name.removeprefix('ffnmem.')}"
    return f"[`{name}`][{path}]" if path in names else f"`{name}`"


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
