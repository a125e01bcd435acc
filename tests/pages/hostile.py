"""Token text that tries to get out of what it is shown in."""

from __future__ import annotations

from dataclasses import replace

from ffnmem.scanning.neuron import Neuron

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>|**[a](b)`\x1b[31m\x00\u202e\n\r\u2028"
UNSEEN = "\x1b\x00\u202e\r\u2028"


def poisoned(neuron: Neuron, text: str = HOSTILE) -> Neuron:
    """The neuron with ``text`` for every token that it holds."""
    tables = {name: getattr(neuron, name).assign(token=text) for name in ("examples", "by_token", "values")}
    tables["examples"] = tables["examples"].assign(context=text)
    passages = {n: replace(one, tokens=(text,) * len(one.tokens)) for n, one in neuron.passages.items()}
    windows = (replace(one, tokens=(text,) * len(one.tokens), cut_after=True) for one in neuron.windows)
    return replace(neuron, windows=tuple(windows), passages=passages, **tables)
