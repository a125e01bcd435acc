"""What notebooks show of traces: the question in a sentence, and its maps as small tables shaded by effect."""

from __future__ import annotations

import numpy as np

from ..show.framing import framed, line, provenance, soft, whole
from ..show.rendering import percent, plain, signed
from ..token_text import page_text, visible
from .trace import Trace
from .traces import Traces

NAMES = {
    "state": "state",
    "ffn": "FFN",
    "attention": "attention",
    "severed_ffn": "state, FFN severed",
    "severed_attention": "state, attention severed",
}
ADDS, TAKES = "63, 143, 224", "224, 134, 31"  # as on the other pages
CELL = "width: 18px; min-width: 12px; padding: 0; border: 1px solid rgba(128, 128, 128, .25)"
LEFT = "padding: 0 6px 0 0; text-align: left; white-space: pre; border: 0"
SKIPPED = 5


def described(kind: str, window: int) -> str:
    """A kind in words, with its window where it has one."""
    if kind not in ("ffn", "attention"):
        return NAMES[kind]
    return f"{NAMES[kind]} of {window} layers" if window > 1 else f"{NAMES[kind]} of one layer"


def trace_html(trace: Trace) -> str:
    """A trace: clean and corrupted probability, and a map of each kind, its strongest colour its largest effect."""
    answer = line(
        f"{page_text(trace.text)} <b>{page_text(visible(trace.answer))}</b>: "
        f"{percent(trace.clean, 1)} clean, {percent(trace.corrupted, 1)} with noise on the subject (*)"
    )
    found = "".join(map_html(trace, kind) for kind in trace.kinds)
    maps = f"<div style='display: flex; flex-wrap: wrap; gap: 12px 28px'>{found}</div>"
    return framed(answer + maps + provenance(trace.provenance.as_dict()))


def map_html(trace: Trace, kind: str) -> str:
    """The indirect effects of one kind, a row a token and a column a layer."""
    effects = trace.indirect(kind)
    limit = float(np.abs(effects).max()) or 1.0
    rows = []
    for position, token in enumerate(trace.tokens):
        mark = "*" if position in trace.subject else ""
        cells = "".join(
            f"<td title='layer {layer}: {signed(float(effect), 3)}' style='{CELL}; background: "
            f"rgba({ADDS if effect > 0 else TAKES}, {abs(effect) / limit:.2f})'></td>"
            for layer, effect in enumerate(effects[:, position])
        )
        label = "BOS" if position == 0 and trace.provenance.prepend_bos else visible(token, 16)
        rows.append(f"<tr><td style='{LEFT}'>{page_text(label)}{mark}</td>{cells}</tr>")
    caption = (
        f"{page_text(described(kind, trace.window))}: layers 0 to {trace.n_layers - 1}, effects to {plain(limit, 3)}"
    )
    table = f"<table style='border-collapse: collapse; font-size: 13px; line-height: 18px'>{''.join(rows)}</table>"
    return f"<div style='min-width: 0'><p class='fm-soft'>{caption}</p>{table}</div>"


def traces_html(traces: Traces) -> str:
    """Many traces: how many, the largest mean effect of each kind and group, and why facts were skipped."""
    facts = traces.facts
    said = f"{len(traces)} facts traced, {len(traces.skipped)} skipped"
    if len(traces):
        means = (percent(float(facts[name].mean()), 1) for name in ("clean", "corrupted"))
        said += "; mean probability {} clean, {} with noise on the subject".format(*means)
    rows = traces.groups
    best = rows.loc[rows.groupby(["kind", "group"], sort=False)["mean"].idxmax()] if len(rows) else rows
    body = "".join(
        f'<tr><td class="fm-left">{page_text(NAMES[row.kind])}</td><td class="fm-left">{page_text(row.group)}</td>'
        f"<td>{row.layer}</td><td>{signed(row.mean, 3)}</td><td>{signed(row.low, 3)} to {signed(row.high, 3)}</td>"
        f"<td>{row.n}</td></tr>"
        for row in best.itertuples()
    )
    names = ("restored", "at", "best layer", "mean effect", "95% interval", "facts")
    kinds = [' class="fm-left"', ' class="fm-left"', "", "", "", ""]
    head = "".join(f"<th{kind}>{name}</th>" for name, kind in zip(names, kinds, strict=True))
    why = "".join(soft(str(reason)) for reason in traces.skipped["reason"].head(SKIPPED))
    table = whole(f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>")
    return framed(line(said) + table + why + provenance(traces.provenance.as_dict()))
