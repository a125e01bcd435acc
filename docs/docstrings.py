"""A griffe extension that reads docstrings as this package writes them.

Roles, such as :func:`ffnmem.load`, become links where the manual has the name. Parameters that are described together
("layer, neuron: which") are described one by one, each with its own type and default. "Raises: …" in one line begins a
paragraph, not a section, and what continues an entry may be indented by less than griffe wants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|attr|mod|data|exc):`~?([^`]+)`")
SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$")
PARAGRAPH = re.compile(r"^(?:Args|Raises|Returns): \S")
TOGETHER = re.compile(r"^    (\w+(?:, \w+)+): (.*)")
CONTINUED = re.compile(r"^ {5,}\S")
SHORT = re.compile(r"^ {5,7}\S")
LONGEST = 120
"""Characters of what a name is replaced by: a callback's list of phases is no help."""
UNNAMED = re.compile(r"^    (?!\w+: )\S")


class Docstrings(griffe.Extension):
    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Called once for every function: a constant of this package reads as its value, an alias as what it stands
        for, so that a page says ``draws: int = 1000`` in place of a name that only the code knows."""
        for parameter in func.parameters:
            parameter.default = replace_names(parameter.default)
            parameter.annotation = replace_names(parameter.annotation)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for every object of the package, when all of it was read."""
        if obj.docstring is None:
            return
        text = ROLE.sub(lambda found: linked(found[1], public(obj.package)), obj.docstring.value)
        obj.docstring.value = "\n".join(one_by_one(text.splitlines()))


def public(package: griffe.Module) -> dict[str, str]:
    """Every public name as users write it, and where it is defined: first the top's, then the subpackages'.

    lazy_loader reads the stubs when a name is first asked for, so no ``__all__`` is there to be read.
    """
    found = {}
    for holder in (package, *package.modules.values()):
        if isinstance(holder.filepath, Path) and holder.filepath.with_suffix(".pyi").is_file():
            for name, member in holder.members.items():
                if member.is_alias and member.target_path.startswith("ffnmem.") and not name.startswith("_"):
                    found[f"{holder.path}.{name}"] = member.final_target.path
    return found


def replace_names(expression: Any) -> Any:
    """An expression with the module attributes of this package that it names replaced by their values."""
    if isinstance(expression, griffe.ExprName):
        try:
            meant: Any = expression.parent.modules_collection[expression.canonical_path]  # type: ignore[union-attr]
            meant = meant.final_target if meant.is_alias else meant
        except (AttributeError, KeyError, griffe.GriffeError):  # a local name, or one of another package
            return expression
        if not meant.is_attribute or meant.value is None or not meant.path.startswith("ffnmem."):
            return expression
        value = replace_names(meant.value)
        return value if len(str(value)) <= LONGEST else expression
    if isinstance(expression, griffe.ExprSubscript) and expression.canonical_path == "typing.Annotated":
        return replace_names(expression.slice.elements[0])  # type: ignore[union-attr]
    if isinstance(expression, griffe.Expr):
        for field in fields(expression):
            value = getattr(expression, field.name)
            if isinstance(value, list | tuple):
                setattr(expression, field.name, [replace_names(one) for one in value])
            elif field.name != "parent" and isinstance(value, griffe.Expr):
                setattr(expression, field.name, replace_names(value))
    return expression


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
