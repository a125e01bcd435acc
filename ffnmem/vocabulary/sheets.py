"""What projections, the neurons behind a token and found tokens look like."""

from __future__ import annotations

import pandas as pd

from ..core.sheets import Column, Origin, Sheet, Table, Words, decimals, rows

SIDES = {
    "value": "what it writes towards and against",
    "key": "what excites and inhibits it",
    "gate": "what opens and shuts its gate",
}
NEURONS = {
    "value": "neurons that write towards and against",
    "key": "neurons that are excited and inhibited by",
    "gate": "neurons whose gates are opened and shut by",
}
LIMIT = 24  # columns of a token


def projection_sheet(frame: pd.DataFrame) -> Sheet:
    """Of :func:`ffnmem.project`: each side of each neuron, the two ends of its ranking beside each other."""
    sides = (token_table(found) for _, found in frame.groupby(["layer", "neuron", "side"], sort=False))
    return Sheet.of(*sides, Origin(frame.attrs["provenance"]))


def token_table(found: pd.DataFrame) -> Table:
    """One side of one neuron."""
    first, places = found.iloc[0], decimals(found["score"])
    token = Column("promoted", "token", limit=LIMIT, least=20)
    score = Column("score", "number", places=places, sign=True)
    shown = rows(Column("rank", "count"), token, score, Column("suppressed", "token", limit=LIMIT, least=20), score)
    ends = [found[found["sign"] == sign] for sign in ("promoted", "suppressed")]
    for high, low in zip(*(end.itertuples() for end in ends), strict=True):
        shown.add(int(high.rank), high.token, high.score, low.token, low.score)
    side = str(first["side"])
    return shown.table(f"{first['layer']}.{first['neuron']} {side}: {SIDES[side]}")


def promoters_sheet(frame: pd.DataFrame) -> Sheet:
    """Of :func:`ffnmem.promoters`: the neurons at both ends beside each other, one table a side."""
    first, places = frame.iloc[0], decimals(frame["score"])
    texts = [first["token"]] if "token" in frame.columns else first["tokens"]
    named = ", ".join(repr(text) for text in texts)
    score = Column("score", "number", places=places, sign=True)
    tables = []
    for side, found in frame.groupby("side", sort=False):
        promoted, suppressed = (Column(name, "neuron", left=False) for name in ("promoted", "suppressed"))
        shown = rows(Column("rank", "count"), promoted, score, suppressed, score)
        ends = [found[found["sign"] == sign] for sign in ("promoted", "suppressed")]
        for high, low in zip(*(end.itertuples() for end in ends), strict=True):
            shown.add(int(high.rank), (high.layer, high.neuron), high.score, (low.layer, low.neuron), low.score)
        tables.append(shown.table(f"{side}: {NEURONS[str(side)]} {named}"))
    return Sheet.of(*tables, Origin(frame.attrs["provenance"]))


def hits_sheet(frame: pd.DataFrame) -> Sheet:
    """Of :func:`ffnmem.search_projection`: the rows of a stored projection whose token was searched for."""
    shown = rows(
        Column("neuron", "neuron", left=False),
        "side",
        "sign",
        Column("rank", "count"),
        Column("token", "token", limit=LIMIT),
        Column("score", "number", sign=True),
    )
    for row in frame.itertuples():
        shown.add((row.layer, row.neuron), row.side, row.sign, int(row.rank), row.token, row.score)
    found = Words.of("no token in this file matches") if frame.empty else shown.table()
    return Sheet.of(found, Origin(frame.attrs["provenance"]))
