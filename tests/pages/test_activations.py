"""The explorer of activation functions, without a browser: what the file holds."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from ffnmem.core.errors import FileError, InputError
from ffnmem.ffn.activations import ACTIVATIONS, POINTS, activation_table, curves, swish
from ffnmem.pages import activations
from ffnmem.pages.activation_functions import DIP, activations_html
from ffnmem.pages.rendering import content_hash

from ..helpers import refuses
from .page import Page, unscripted

FAR = torch.linspace(-12, 12, 240_001, dtype=torch.float64)


@pytest.fixture(scope="module")
def html() -> str:
    return activations_html()


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    bare = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    return Page(re.sub(r"<(path|line|rect|circle)([^>]*)></\1>", r"<\1\2></\1>", bare))


def test_reference_tables_are_the_functions(page: Page) -> None:
    """Readers without scripts have only these; they are compared in full, and as shown to four decimals."""
    rows = [row for row in page.tables["reference"] if row[0].text != "at x ="]
    names = [one.title for one in curves()]
    assert [row[0].text for row in rows] == names * 2
    frame = activation_table()
    for rows_of, column in ((rows[: len(names)], "value"), (rows[len(names) :], "gradient")):
        for row, name in zip(rows_of, names, strict=True):
            expected = frame.loc[frame["title"] == name, column].tolist()
            assert [cell.values for cell in row[1:]] == [[y] for y in expected]
            assert [float(cell.text.replace("−", "-")) for cell in row[1:]] == pytest.approx(expected, abs=5.01e-5)
    heads = [row for row in page.tables["reference"] if row[0].text == "at x ="]
    assert [float(cell.text.replace("−", "-")) for cell in heads[0][1:]] == list(POINTS)


def test_formulas_and_sources(page: Page) -> None:
    rows = {row[1].text: [cell.text for cell in row[2:]] for row in page.tables["formulas"][1:]}
    for one in ACTIVATIONS.values():
        assert rows[one.title] == [one.formula, one.gradient_formula, one.source]
    general = [text.replace("β", "2") for text in rows["Swish"][:2]]
    assert general == [swish(2).formula, swish(2).gradient_formula], "the formulas with β are those of swish(2)"


def test_still_drawing_is_the_functions(page: Page) -> None:
    """Of the drawing that a browser without scripts shows: every curve in both panels, ReLU's gradient in two parts."""
    drawn = [attrs for tag, attrs in page.tags if tag == "path" and "curve" in attrs.get("class", "")]
    names = [one.name for one in curves()]
    assert [attrs["class"].split("-", 1)[1] for attrs in drawn] == names * 2
    gradient = drawn[len(names) :]
    assert gradient[names.index("relu")]["d"].count("M") == 2
    assert gradient[names.index("gelu")]["d"].count("M") == 1
    places = [tuple(map(float, at.split())) for at in re.split("[ML]", drawn[names.index("gelu")]["d"])[1:]]
    x = np.array([-3 + 6 * (left - 42) / 466 for left, _ in places])
    y = [3.1 - 3.6 * (top - 26) / 248 for _, top in places]
    np.testing.assert_allclose(y, ACTIVATIONS["gelu"].value(torch.from_numpy(x)).numpy(), atol=2e-4)


def test_policy_admits_the_script_and_nothing_else(html: str) -> None:
    """A page that can reach a network is not one to open from a mail."""
    unscripted(html, "activations.js")
    digest = base64.b64encode(hashlib.sha256(b"x").digest()).decode()
    assert content_hash("x") == f"sha256-{digest}"
    addresses = set(re.findall(r"\w+://[^\"'\s<]+", html))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of SVG's elements, which no browser fetches"
    assert not re.search(r"<(link|img|iframe|object|embed|base)\b|@import|url\((?!#)", html)
    assert not re.search(r"\b(eval|fetch|XMLHttpRequest|innerHTML|localStorage)\b", html)


def test_every_activation_has_its_controls(html: str, page: Page) -> None:
    names = [one.name for one in curves()]
    boxes = [attrs for tag, attrs in page.tags if tag == "input" and attrs.get("type") == "checkbox"]
    assert [box["value"] for box in boxes] == names
    config = re.search(r'<script type="application/json" id="config">(.*?)</script>', html)
    assert config is not None
    found = json.loads(config[1])
    assert [one["name"] for one in found["activations"]] == names
    assert set(found["shown"]) == {box["value"] for box in boxes if "checked" in box} <= set(names)
    for name in names:
        assert f".s-{name} {{ --c: #" in html


def test_what_the_text_says_is_so(page: Page) -> None:
    """The numbers in the explanations, from the functions themselves."""
    said = page.words
    for one, name in ((ACTIVATIONS["gelu"], "GELU"), (ACTIVATIONS["silu"], "SiLU")):
        y = one.value(FAR)
        lowest = int(y.argmin())
        dip = f"{float(y[lowest]):.3f} at x = {float(FAR[lowest]):.3f}".replace("-", "−")
        assert f"goes down to {dip}" in said or f"{name} to {dip}" in said
        slope = one.gradient(FAR)
        assert f"{float(slope.max()):.3f} for {name}" in said
        torch.testing.assert_close(slope + slope.flip(0), torch.ones_like(slope), rtol=0, atol=1e-12)
    assert "at x = 2.399" in said
    assert float(FAR[int(ACTIVATIONS["silu"].gradient(FAR).argmax())]) == pytest.approx(2.399, abs=5e-4)
    assert float(FAR[int(ACTIVATIONS["gelu"].gradient(FAR).argmax())]) == pytest.approx(math.sqrt(2), abs=1e-4)
    five = torch.tensor(-5.0, dtype=torch.float64)
    assert f"(−{-float(ACTIVATIONS['gelu'].gradient(five)):.6f} at x = −5)" in said
    assert f"(−{-float(ACTIVATIONS['silu'].gradient(five)):.3f})" in said
    apart = (ACTIVATIONS["gelu"].value(FAR) - ACTIVATIONS["gelu_tanh"].value(FAR)).abs().max()
    assert 0.0004 < float(apart) < 0.0005


@pytest.mark.parametrize("beta", [0.5, 1.0, 1.702, 10.0])
def test_swishs_distance_from_relu(beta: float) -> None:
    """The page says how far Swish is from ReLU at most: SiLU's dip over β."""
    away = (swish(beta).value(FAR) - torch.relu(FAR)).abs().max()
    assert float(away) == pytest.approx(DIP / beta, abs=1e-7)


def test_written_whole(tmp_path: Path) -> None:
    path = activations(tmp_path / "a.html", beta=3)
    assert path == tmp_path / "a.html"
    assert path.read_text("utf-8") == activations_html(3)
    assert "Swish (β = 3)" in path.read_text("utf-8")
    with refuses(FileError, OSError, "no folder"):
        activations(tmp_path / "none" / "a.html")
    for beta in (-1, 100.5, math.nan):
        with refuses(InputError, ValueError, "beta"):
            activations(tmp_path / "b.html", beta=beta)
    assert [found.name for found in tmp_path.iterdir()] == ["a.html"]
