"""A Markdown extension: ``$x_i$`` and ``$$…$$`` become MathML, which browsers draw by themselves, offline."""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

BLOCK = r"\$\$(.+?)\$\$"
INLINE = r"(?<![\\$\w])\$(?![\s$])([^$]+?)(?<![\s\\])\$(?![\w$])"
BAR = re.compile(r"<mo[^>]*>(&#x0007C;|&#x02225;|&#x02016;|\||∥|‖)</mo>")
BEFORE_ESCAPES = 185  # and after code, at 190


class Formula(InlineProcessor):
    def __init__(self, pattern: str, md: Markdown, display: str) -> None:
        super().__init__(pattern, md)
        self.compiled_re = re.compile(pattern, re.DOTALL)
        self.display = display

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Element | str, int, int]:  # type: ignore[override]
        # Bars are fences here and not relations, which would stand apart from what they enclose.
        formula = BAR.sub(
            r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', convert(m[1].strip(), display=self.display)
        )
        return self.md.htmlStash.store(formula), m.start(0), m.end(0)


class Formulas(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(Formula(BLOCK, md, "block"), "block formula", BEFORE_ESCAPES + 1)
        md.inlinePatterns.register(Formula(INLINE, md, "inline"), "formula", BEFORE_ESCAPES)


def makeExtension(**settings: Any) -> Formulas:
    return Formulas(**settings)
