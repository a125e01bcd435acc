"""Write the manual's table of architectures: ``python -m tests.models.table``, ``--check`` compares what is stated.

Every row is a model of :mod:`tests.architectures` that went through all parts of :mod:`tests.models.examining` just
now; a part that fails stops it. The errors are relative, of float64, rounded up to a power of ten. ``--check`` does not
measure them again, which the tests do.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import ffnmem as fm
from ffnmem.models.replaying import PlainLayers, Replay

from ..architectures import DECODERS
from ..helpers import REPOSITORY, build_tokenizer
from .examining import PARTS, Examined

PAGE = REPOSITORY / "docs" / "architectures.md"
HEAD = ("architecture", "FFN", "norms", "attention and FFN", "Σ memories − output", "Σ components − logit")
MARKS = ("<!-- architectures:begin -->", "<!-- architectures:end -->")


def stated(name: str, model: fm.Model) -> list[str]:
    """What a row says of an architecture without measuring."""
    ffn, layout = model.ffn[0], model.layout
    block = layout.blocks[0]
    biases = "" if ffn.key_bias is None else ", biases"
    norms = layout.architecture.norm_kind.name
    if block.norm is None:
        norms += " behind only"
    elif block.post is not None:
        norms += ", behind too"
    elif block.norm is block.attention_norm:
        norms += ", one for both"
    parallel = Replay(PlainLayers(model), torch.arange(8).unsqueeze(0)).parallel[0]
    more = [
        "scaled" if layout.write_scale != 1.0 else "",
        "logits scaled" if layout.logit_scale != 1.0 else "",
        "logits capped" if layout.soft_cap is not None else "",
    ]
    how = ", ".join(part for part in ("side by side" if parallel else "in turn", *more) if part)
    return [name, f"{'gated' if ffn.gated else 'classic'}, {ffn.activation}{biases}", norms, how]


RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def raised(error: float) -> str:
    """An error as the power of ten above it."""
    if error == 0:
        return "0"
    exponent = math.ceil(math.log10(error))
    return f"10⁻{str(-exponent).translate(RAISED)}"


def row(name: str, tokenizer: Any, measure: bool) -> list[str]:
    if not measure:
        return stated(name, fm.load(DECODERS[name](), tokenizer=tokenizer))
    with tempfile.TemporaryDirectory() as folder:
        examined = Examined(name, Path(folder), tokenizer)
        for part in PARTS.values():
            part(examined)
        whole = max(fm.decompose(examined.captured, layer).error for layer in range(examined.model.n_layers))
        found = fm.attribute(examined.captured, " Paris")
        logit = max(found.error, fm.attribute_paths(examined.captured, " Paris").error) / max(1.0, abs(found.logit))
        return [*stated(name, examined.model), raised(whole), raised(logit)]


def table(rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * 4}--:|--:|", *(f"| {' | '.join(cells)} |" for cells in rows)]
    return "\n".join(lines)


def cells(text: str) -> list[list[str]]:
    """The rows of the manual's table."""
    inside = text.split(MARKS[0])[1].split(MARKS[1])[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in inside.strip().splitlines()[2:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare what is stated, and measure nothing")
    check = parser.parse_args().check
    tokenizer = build_tokenizer()
    rows = [row(name, tokenizer, measure=not check) for name in DECODERS]
    text = PAGE.read_text("utf-8")
    if check:
        if [line[:4] for line in cells(text)] != rows:
            sys.exit("the manual's table of architectures is not that of the tests: python -m tests.models.table")
        return
    before, after = text.partition(MARKS[0])[0], text.partition(MARKS[1])[2]
    PAGE.write_text(f"{before}{MARKS[0]}\n{table(rows)}\n{MARKS[1]}{after}", "utf-8")


if __name__ == "__main__":
    main()
