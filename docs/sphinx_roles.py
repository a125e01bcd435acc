"""A griffe extension: roles in docstrings, such as :func:`ffnmem.load`, become links where the manual has the name."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|attr|mod|data|exc):`~?([^`]+)`")


class Roles(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for every object of the package, when all of it was read."""
        if obj.docstring is None:
            return
        public = frozenset(obj.package.exports or ())
        obj.docstring.value = ROLE.sub(lambda found: linked(found[1], public), obj.docstring.value)


def linked(name: str, public: frozenset[str]) -> str:
    bare = name.removeprefix("ffnmem.")
    return f"[`{name}`][ffnmem.{bare}]" if bare in public else f"`{name}`"
