"""The circuit's view: what it says and draws is the library's."""

from __future__ import annotations

import base64
import html
import io
import re
from xml.etree import ElementTree

import pandas as pd
import pytest
from starlette.testclient import TestClient

import ffnmem as fm
from ffnmem.explorer.queries import address

from ..helpers import PROMPT
from .conftest import sentence

ASKED = {"text": PROMPT, "target": " Paris", "foil": " Rome"}


def test_a_word_of_several_tokens_is_read_whole(client: TestClient) -> None:
    page = client.get(address("/circuit", **{**ASKED, "target": " Paris Rome", "foil": ""}, firings="0.5@3")).text
    assert "·Paris·Rome" in re.sub(r"<[^>]+>", "", html.unescape(page))
    assert "the sum over its 2 tokens" in page


def test_the_graph_is_the_librarys(client: TestClient, tiny: fm.Model) -> None:
    """Of a minimal circuit, and of firings that are named."""
    capture = fm.capture(tiny, PROMPT)
    fewest = fm.minimal_circuit(capture, " Paris", " Rome", faithfulness=0.8)
    for more, firings in (({"share": 0.8}, fewest), ({"firings": "0.5@3, 1.7"}, ["0.5@3", "1.7"])):
        edges = pd.read_csv(io.BytesIO(client.get(address("/circuit", format="csv", **ASKED, **more)).content))
        expected = fm.circuit(capture, firings, " Paris", " Rome")
        assert edges["source"].tolist() == expected.edges["source"].tolist()
        assert edges["weight"].tolist() == pytest.approx(expected.edges["weight"].tolist())
        page = client.get(address("/circuit", **ASKED, **more)).text
        row = expected.firings.iloc[0]
        assert f'href="/memory/{row["layer"]}.{row["neuron"]}"' in page
        assert sentence(page) == expected.verdict


def test_the_picture_is_an_image_without_scripts(client: TestClient) -> None:
    page = client.get(address("/circuit", **ASKED, firings="0.5@3")).text
    (source,) = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)"', page)
    drawn = ElementTree.fromstring(base64.b64decode(source))
    assert drawn.tag.endswith("svg")
    assert not [one for one in drawn.iter() if one.tag.rpartition("}")[2] in ("script", "a", "foreignObject")]
