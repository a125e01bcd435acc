"""Somebody who is asked and knows the answer: planted neurons fire at words that begin alike."""

from __future__ import annotations

import re


def answer_knowing(question: str) -> str:
    """Describes by the letters that most marked tokens begin with, and says of a context whether it has them."""
    if "DESCRIPTION:" in question:
        marked = [*re.findall(r"⟦ ?(\w{1,4})", question), "?"]
        return f"Let me see.\nDESCRIPTION: {max(sorted(set(marked)), key=marked.count)}"
    description, *texts = re.findall(r"<text-\w{12}>(.*)</text-\w{12}>", question.split("\n", 2)[2])
    return f"[{', '.join(str(int(description in text)) for text in texts)}]"
