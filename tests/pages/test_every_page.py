"""What every page promises, of a model whose tokens, name and facts try to get out of what they are shown in."""

from __future__ import annotations

import base64
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.pages.rendering import content_hash
from ffnmem.scanning import Store

from ..editing.edits import made as random_edit
from ..helpers import build_gpt2, check_kept, printed, summed
from ..planted_models import word_tokenizer
from .hostile import HOSTILE, UNSEEN
from .page import SCRIPT, Page

BAD = "<script>alert(1)</script>\"'><img/onerror=alert(1)>|**[a](b)`&amp;\x1b[31m\x07\u202e{}"
WORDS = [BAD.replace("{}", str(i)) for i in range(40)]
PROMPT = " ".join(WORDS[:6])
FACT = fm.Fact(WORDS[0], "r", "{} " + WORDS[1], WORDS[2], WORDS[3], id="f", paraphrases=("{} " + WORDS[4],))
ASSETS = Path(fm.__file__).parent
DRAWN = "data:image/svg+xml;base64,"


def hostile_model(**changes: Any) -> fm.Model:
    model = fm.load(build_gpt2(vocab_size=42, **changes), tokenizer=word_tokenizer(WORDS))
    model.name = HOSTILE
    return model


@pytest.fixture(scope="module")
def model() -> fm.Model:
    return hostile_model()


@pytest.fixture(scope="module")
def store(model: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> Store:
    texts = [" ".join(WORDS[(7 * i + 3 * j) % 40] for j in range(20)) for i in range(12)]
    found = fm.scan(model, texts, tmp_path_factory.mktemp("store") / "store", k=3, context=8)
    return fm.open_store(found.folder, model)


Make = Callable[[fm.Model, Store, Path], Path]
PAGES: dict[str, Make] = {
    "report": lambda model, store, out: fm.pages.page(
        fm.report(fm.capture(model, PROMPT), foil=f" {WORDS[7]}"), out, top=20
    ),
    "neurons": lambda model, store, out: fm.pages.page(fm.neurons.read_cards(store, [(1, 5), (0, 3)]), out),
    "circuit": lambda model, store, out: fm.pages.page(
        fm.circuit(fm.capture(model, PROMPT), ["0.5", "0.6", "1.7"]), out
    ),
    "contrast": lambda model, store, out: fm.pages.page(contrast(model), out),
    "site": lambda model, store, out: site(store, out, "1/5.html"),
    "layer of a site": lambda model, store, out: site(store, out, "1/index.html"),
}


TEXTS = [" ".join(WORDS[(5 * i + j) % 40] for j in range(15)) for i in range(30)]


def contrast(model: fm.Model) -> Any:
    """A random model may say either answer more after either prompt."""
    answers = [f" {word}" for word in WORDS[10:12]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return fm.contrast(model, PROMPT, " ".join(WORDS[12:18]), *answers, random=1)
        except fm.InputError:
            return fm.contrast(model, PROMPT, " ".join(WORDS[12:18]), *answers[::-1], random=1)


def site(store: Store, out: Path, page: str) -> Path:
    return fm.pages.site(store, out.parent / "site").parent / page


@pytest.fixture(scope="module", params=PAGES)
def path(
    request: pytest.FixtureRequest, model: fm.Model, store: Store, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return PAGES[request.param](model, store, tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture(scope="module")
def html(path: Path) -> str:
    return path.read_text("utf-8")


def test_nothing_of_others_is_markup(html: str) -> None:
    """Elements close where they should, attributes are none that run, and what is hostile can be read."""
    page = Page(html)
    assert "alert(1)</script>" in page.text + " ".join(page.titles)
    assert not set(UNSEEN) & set(html)
    images = [attrs["src"] for tag, attrs in page.tags if tag == "img"]
    for source in images:  # of a circuit, in which tokens are texts
        assert source.startswith(DRAWN)
        drawn = list(ElementTree.fromstring(base64.b64decode(source.removeprefix(DRAWN))).iter())
        assert "alert(1)" in " ".join(one.text or "" for one in drawn)
        assert not {one.tag.rpartition("}")[2] for one in drawn} & {"script", "foreignObject", "image", "a"}
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]


def test_it_needs_nothing_from_outside_and_runs_only_its_own_scripts(html: str, path: Path) -> None:
    page = Page(html)
    own = [text for file in ASSETS.rglob("*.js") for text in [file.read_text("utf-8")]]
    scripts = SCRIPT.findall(html)
    assert len(re.findall("<script", html)) == len([tag for tag, _ in page.tags if tag == "script"])
    for script in scripts:
        assert any(script.strip().endswith(text.strip()[-80:]) for text in own)
        assert not re.search(r"\b(eval|fetch|XMLHttpRequest|innerHTML)\b|<!--", script)
    (policy,) = [attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert all(f"'{content_hash(script)}'" in policy for script in scripts)
    assert not re.search(r"https?:|@import|url\(", SCRIPT.sub("", html))
    for tag, attrs in page.tags:
        assert tag not in ("iframe", "object", "embed", "base")
        for name in {"src", "href"} & set(attrs):
            assert attrs[name].startswith("#") or (path.parent / attrs[name]).resolve().is_relative_to(path.parents[1])


def test_it_can_be_read_without_seeing_it(html: str) -> None:
    """Every picture has a text or is hidden, every head of a table says what it is of."""
    page = Page(html)
    assert ("html", {"lang": "en"}) in page.tags
    for tag, attrs in page.tags:
        if tag == "svg":
            assert attrs.get("aria-hidden") == "true" or (attrs["role"] in ("img", "group") and attrs["aria-label"])
        if tag == "th":
            assert attrs["scope"] in ("col", "row", "rowgroup")


NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
COORDINATE = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
# Digests, dates, versions.
PASSING = re.compile(r"[0-9a-f]{12,}|\d{4}-\d\d-\d\d\S*|(ffnmem|torch|transformers) \d\S*")
NUMBERS = Path(__file__).with_name("numbers.json")


def test_numbers_are_those_that_were_looked_at(
    html: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In the text, and in what is drawn: of another neuron, layer or place, or more or fewer than before."""
    text = re.sub("<[^>]*>", " ", re.sub(r"<(script|style).*?</\1>", "", html, flags=re.DOTALL))
    text = re.sub(re.escape(str(tmp_path_factory.getbasetemp())) + r"[\w/.-]*", "", text)
    tags = Page(html).tags
    drawn = [found for _, attrs in tags for name in ("d", "x", "y", "width", "value") if (found := attrs.get(name))]
    numbers = {
        "text": [float(one.replace("−", "-").replace(",", "")) for one in NUMBER.findall(PASSING.sub("", text))],
        "drawn": [float(one) for one in COORDINATE.findall(" ".join(drawn))],
    }
    name = request.node.callspec.params["path"]
    check_kept(NUMBERS, name, [{kind: summed(x) for kind, x in numbers.items() if x}])


def test_what_is_kept_is_of_these() -> None:
    assert set(json.loads(NUMBERS.read_text("utf-8"))) == set(PAGES)


@pytest.mark.parametrize("name", [name for name in PAGES if "site" not in name])
def test_an_older_page_stays_where_a_new_one_fails(
    name: str, model: fm.Model, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileError, match="missing"):
        PAGES[name](model, store, tmp_path / "missing" / "page.html")

    def fail(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    out = tmp_path / "page.html"
    out.write_text("older")
    monkeypatch.setattr("os.replace", fail)
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(FileError, match="Permission denied"):
        PAGES[name](model, store, out)
    assert out.read_text() == "older"
    assert list(tmp_path.iterdir()) == [out]


def test_displays_and_terminals_keep_it_text(model: fm.Model, store: Store) -> None:
    """In a notebook nothing of it is markup; on a terminal nothing moves the cursor or breaks a line."""
    capture = fm.capture(model, PROMPT)
    results: list[Any] = [
        *(store.neuron(1, 5, shade=True), fm.meanings(store, 1, 5, model), capture),
        *(fm.attribute(capture), fm.attribute_paths(capture), fm.circuit(capture, ["0.5", "1.7"])),
        *(fm.evaluate(model, FACT, "none", protocol="generated", drift=False), random_edit(model, fact=FACT)),
    ]
    for result in results:
        page, terminal = Page(result._repr_html_()), "".join(printed(result.sheet(), 200))
        assert "alert(1)" in page.text
        assert "alert(1)" in terminal
        assert not {"script", "img"} & {tag for tag, _ in page.tags}
        assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
        assert not set(UNSEEN) & set(page.text + terminal)
