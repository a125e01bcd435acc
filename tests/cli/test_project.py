"""``ffnmem project``: memories by name, in the order asked."""

from __future__ import annotations

from pathlib import Path

import ffnmem as fm
from ffnmem.core.number_text import decimals, format_number

from .running import run, table


def test_table(tiny: fm.Model, tiny_folder: Path) -> None:
    """Both ends of both rankings, each under its neuron's name."""
    out = table("project", "1.5,0.7", "--model", tiny_folder, "--top", 2)
    assert [line.split(":")[0] for line in out.splitlines() if ": what" in line] == [
        "1.5 value",
        "1.5 key",
        "0.7 value",
        "0.7 key",
    ]
    for _, rows in fm.project(tiny, 0, 7, k=2).groupby("side"):
        for score in rows["score"]:
            assert format_number(score, decimals(rows["score"]), sign=True) in out
    assert "basis folded" in out


def test_needs_no_beginning_of_sequence_token(tiny_hf: object, tokenizer: object, tmp_path: Path) -> None:
    """Nothing is read, so a tokenizer without that token must not matter."""
    import copy

    plain = copy.deepcopy(tokenizer)
    plain.bos_token = None  # type: ignore[attr-defined]
    tiny_hf.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    plain.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    assert run("project", "0.1", "--model", tmp_path, "--csv").stdout
