"""What notebooks show of a calibration."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ffnmem as fm
from ffnmem.calibration.meaning_scores import K
from ffnmem.reports.calibration import calibration_html
from ffnmem.semantics.verdicts import VERDICTS
from tests.calibration.made import made

from .hostile import HOSTILE
from .page import Page

HEADS = {"measures": "measure", "verdicts": "planted meanings", "nulls": "null of", "roles": "role", "facts": "measure"}


def tables(page: Page) -> dict[str, list[list[str]]]:
    """Rows of text by table, without their heads."""
    found: dict[str, list[list[str]]] = {}
    left = list(HEADS.items())
    for row in page.tables["fm-table"]:
        texts = [cell.text for cell in row]
        if left and texts[0] == left[0][1]:
            found[left.pop(0)[0]] = []
        else:
            found[next(reversed(found))].append(texts)
    return found


def test_numbers() -> None:
    calibration = made()
    page = Page(calibration._repr_html_())
    shown = tables(page)
    assert list(shown) == list(HEADS)
    for name, rows in shown.items():
        assert len(rows) == len(calibration.tables[name])
    assert calibration.measures is not None
    for texts, row in zip(shown["measures"], calibration.measures.to_dict("records"), strict=True):
        assert texts[0] == row["measure"]
        for text, score in zip(texts[1:], ("auroc", "spearman", "precision_at_k"), strict=True):
            numbers = [f"{row[score + end]:.2f}".replace("-", "−") for end in ("", "_low", "_high")]
            assert text == f"{numbers[0]} {numbers[1]} to {numbers[2]}"
    assert shown["verdicts"][0] == ["dead", "0", "0", "0", "1,234"]
    assert shown["verdicts"][1] == ["1", "15", "2", "3", "0"]
    assert "10.0% of monosemantic" in page.words
    assert shown["nulls"][0][1:] == ["1.0%", "0.2% to 3.0%"]
    assert shown["roles"][0] == ["dead", "–", "0.00", "30", "39"]
    assert shown["facts"][0] == ["ablate", "early", "0.20", "0.05 to 0.37", "0.30", "10"]


def test_words_around_the_numbers() -> None:
    page = Page(calibration_html(made()))
    assert f"precision at {K}" in page.words
    assert "superposition 1.5;" in page.words
    assert "seeds 7, 8 · superposition 1, 1.5 · draws 20" in page.words
    head = next(row for row in page.tables["fm-table"] if row[0].text == "planted meanings")
    assert [cell.text for cell in head[1:]] == list(VERDICTS)


@pytest.mark.parametrize("name", [name for name in HEADS if name != "measures"])
def test_only_what_was_asked_for(name: str) -> None:
    page = Page(calibration_html(fm.Calibration(**{name: made().tables[name]}, settings={"seeds": [7]})))
    assert sum(row[0].text == HEADS[name] for row in page.tables["fm-table"]) == 1
    assert len(page.tables["fm-table"]) == 1 + len(made().tables[name])
    assert ("monosemantic neurons are called" in page.words) == (name == "verdicts")


def test_hostile_names_are_escaped() -> None:
    facts = made().facts
    assert facts is not None
    html = calibration_html(replace(made(), facts=facts.assign(measure=HOSTILE), settings={HOSTILE: HOSTILE}))
    assert "<script" not in html
    assert "<img" not in html
