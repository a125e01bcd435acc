import re
from html import unescape

from ffnmem.reports.markdown import escaped, in_context, neurons_markdown

from ffnmem.reports.cards import card
from ffnmem.scanning import Store
from ffnmem.token_text import printable
from tests.reports.hostile import HOSTILE, UNSEEN, poisoned


def read_back(text: str) -> str:
    """What Markdown shows of escaped text."""
    return unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text))


def rows(text: str, title: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    part = text.split(f"### {title}\n", 1)[1].lstrip("\n").split("\n\n")[0]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in part.splitlines()[2:]]


def test_escaping_is_undone_by_reading() -> None:
    assert read_back(escaped(HOSTILE)) == printable(HOSTILE)  # what would not show is written as an escape
    assert "<" not in escaped(HOSTILE)


def test_examples_are_the_neurons(tiny_store: Store) -> None:
    one = tiny_store.neuron(1, 5, kind=("top", "quantile"))
    text = neurons_markdown(tiny_store, [card(one)])
    top = one.examples[one.examples["kind"] == "top"]
    found = rows(text, "Largest coefficients")
    assert [float(cells[0].replace("−", "-")) for cells in found] == [round(a, 3) for a in top["activation"]]
    for cells, context in zip(found, top["context"], strict=True):
        shown = read_back(re.sub(r"</?b>", "", cells[1])).strip("…").strip()
        assert shown == context.strip() or "\ufffd" in context
        assert cells[1].count("<b>") == 1
    assert f"{tiny_store.n_tokens:,} tokens" in text
    assert read_back(text).count(tiny_store.fingerprint) == 1


def test_hostile_text_formats_nothing(tiny_store: Store) -> None:
    """One row stays one row, and the only tags are ours."""
    one = poisoned(tiny_store.neuron(1, 5, kind="top"))
    text = neurons_markdown(tiny_store, [card(one)])
    assert set(re.findall(r"<[^>]*>?", text)) == {"<b>", "</b>"}
    assert not set(UNSEEN) & set(text)
    assert all(len(cells) == 2 for cells in rows(text, "Largest coefficients"))
    assert len(rows(text, "Largest coefficients")) == len(one.examples)


def test_a_token_of_spaces_shows(tiny_store: Store) -> None:
    one = poisoned(tiny_store.neuron(0, 1, kind="top"), " ")
    example = card(one).groups[0].bands[0].examples[0]
    assert "<b>·</b>" in in_context(example)
