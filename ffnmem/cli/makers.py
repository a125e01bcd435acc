"""Makers: how what is typed becomes a model, a prompt's run or a store. Each function's parameters are the options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ffnmem as fm

from ..core.defaults import ABOVE, ENOUGH
from ..core.errors import InputError, counted
from ..core.types import ChangeNames, Count, Division, Dtype, FactFormat, Seed
from .guard import collect_as_usual, note
from .progress import show_spinner

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..concepts.finding import Concept
    from ..core.progress import Progress
    from ..corpus.packed import Packed
    from ..corpus.sources import Corpus
    from ..editing.edit import Edit
    from ..facts.fact import Fact
    from ..models.model import Model
    from ..neurons.verdicts import Rule
    from ..prompts.captures import Capture
    from ..scanning.store import Store


def read_model(
    model: str = "atlas", device: str | None = None, dtype: Dtype = "float32", prepend_bos: bool | None = None
) -> Model:
    """A model.

    Args:
        model: Which one: atlas (embedded, offline), smollm2 (which "get" gets), a folder in Hugging Face layout, a
            .gguf file, or a Hugging Face id such as gpt2.
        device: Where it runs: cpu, cuda, cuda:1. [default: cpu; cuda, where present, above 50 million parameters]
        dtype: Numeric type of the weights.
        prepend_bos: Put the beginning-of-sequence token before the text, or not. [default: the model's own convention]
    """
    with show_spinner(f"loading {model}"):
        import transformers

        transformers.logging.set_verbosity_error()  # its advice is for programmers, and our errors are one line
        loaded = fm.load(model, device=device, dtype=dtype, prepend_bos=prepend_bos)
    collect_as_usual()
    return loaded


def asked_text(model: Model, prompt: str, chat: bool) -> str:
    """What a model is to read: a prompt, or the text of a user's message by the model's chat template."""
    return model.chat_text([{"role": "user", "content": prompt}]) if chat else prompt


def read_capture(prompt: str, model: Model, chat: bool = False) -> Capture:
    """A prompt's run.

    Args:
        prompt: A text that ends where the answer begins.
        chat: Ask PROMPT as a user's message, by the model's chat template; the answer is what the model begins with.
    """
    return fm.capture(model, asked_text(model, prompt, chat))


def read_fact(prompt: str, subject: str, model: Model, chat: bool = False) -> str:
    """A prompt that asks for a fact.

    Args:
        prompt: A text that ends where the answer begins.
        subject: What the prompt is about, as it is spelled there.
        chat: Ask PROMPT as a user's message, by the model's chat template; the answer is what the model begins with.
    """
    check_read_fact(prompt, subject)
    return asked_text(model, prompt, chat)


def check_read_fact(prompt: str, subject: str) -> None:
    """Raise InputError where a prompt does not hold its subject once, in the user's own words, not in a template's."""
    from ..facts.templates import check_marked_once, only_place

    if "{}" in prompt:
        check_marked_once(prompt, subject)
    else:
        only_place(prompt, subject)


def read_edit(edit: Sequence[str]) -> Edit:
    """An edit.

    Args:
        edit: Files that ffnmem edit --out wrote; several are one edit.
    """
    return reduce(add, map(fm.Edit.load, edit))


def read_concept(concept: str, model: Model) -> Concept:
    """A concept.

    Args:
        concept: The file that "concept" saved of the same model.
    """
    return fm.concepts.Concept.load(concept, model)


def read_facts(
    source: str,
    model: Model,
    relation: str | None = None,
    subject: str | None = None,
    format: FactFormat | None = None,
    limit: Count | None = None,
    known: bool = False,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> list[Fact]:
    """Facts of a source.

    Args:
        source: atlas (the facts of the embedded model), a file of facts, or edits (a file, or a folder of files, as
            ffnmem edit --out writes them), whose facts are taken.
        relation: Facts of this relation (landmark.city), or of all that begin so (landmark).
        subject: Facts whose subject contains this text, in any case.
        format: Of the file. [default: told by the first record]
        limit: At most N facts, drawn with the seed. [default: all]
        known: Only facts that the model says by itself.
        seed: Of what is drawn.
        progress: called with "known", the facts asked and all of them.
    """
    from ..evaluation.editors import facts_of_edits, is_edits, read_edits  # needs torch
    from ..facts.listing import choose_facts, draw_facts

    every = facts_of_edits(read_edits(source)) if is_edits(source) else fm.load_facts(source, format)
    drawn = None if known else limit
    facts = choose_facts(every, source, relation=relation, subject=subject, limit=drawn, seed=seed)
    if not known:
        return facts
    found = fm.facts.filter_known(model, facts, progress=progress)
    if not found.facts:
        raise InputError(
            f"{model.name} knows none of the {counted(len(facts), 'fact')}: leave out --known, or choose others"
        )
    note(f"{model.name} knows {len(found):,} of {counted(len(facts), 'fact')}")
    return draw_facts(found.facts, limit, seed)


def read_changes(changes: ChangeNames) -> dict[str, Any]:
    """Changes of coefficients.

    Args:
        changes: What to change: 3.17=0 sets a neuron's coefficient, 3.17=x2 multiplies it, 3.17+=1 adds to it; 3.all is
            every neuron of a layer.
    """
    kinds = {"=": fm.interventions.Set, "=x": fm.interventions.Scale, "+=": fm.interventions.Add}
    return {name: kinds[how](number) for name, how, number in changes}


def read_store(store: str, model: str | None = None, device: str | None = None) -> Store:
    """A scan.

    Args:
        store: The folder of a scan.
        model: The model that was scanned, if it is no longer where it was. [default: by the store's record]
        device: Where it runs: cpu, cuda, cuda:1. [default: cpu; cuda, where present, above 50 million parameters]
    """
    opened = fm.open_store(store)
    if model is None and device is None:
        return opened  # which loads its model only where its files do not have what is asked for
    about = opened.provenance
    opened.hold(read_model(model or opened.model, device, about["dtype"], about.get("prepend_bos")))
    return opened


def read_means(store: str) -> Store:
    """The means of a scan.

    Args:
        store: The folder of a scan: firings are compared with, or set to, their neuron's mean over its text.
            [default: zero]
    """
    return fm.open_store(store)


def read_ask(reader: str, device: str | None = None, dtype: Dtype = "float32") -> Callable[[str], str]:
    """A model that is asked.

    Args:
        reader: The model that is asked, by its name or place; one that was trained for chats answers best.
        device: Where it runs: cpu, cuda, cuda:1. [default: cpu; cuda, where present, above 50 million parameters]
        dtype: Numeric type of the weights.
    """
    return fm.describing.ask_model(read_model(reader, device, dtype))


def read_second(
    second: str, device: str | None = None, dtype: Dtype = "float32", prepend_bos: bool | None = None
) -> Model | Edit:
    """A second model, or an edit.

    Args:
        second: What is compared: a model's name or place, or the file of an edit of the first model.
        device: Where it runs: cpu, cuda, cuda:1. [default: cpu; cuda, where present, above 50 million parameters]
        dtype: Numeric type of the weights.
        prepend_bos: Put the beginning-of-sequence token before the text, or not. [default: the model's own convention]
    """
    is_edit = Path(second).is_file() and not second.endswith(".gguf")
    return fm.Edit.load(second) if is_edit else read_model(second, device, dtype, prepend_bos)


def read_rule(above: float = ABOVE, enough: int = ENOUGH) -> Rule:
    """When a neuron counts as what.

    Args:
        above: The effective number of meanings above which a neuron is polysemantic.
        enough: A monosemantic neuron has so many examples or more.
    """
    return fm.neurons.Rule(above=above, enough=enough)


def read_texts(texts: str, text: str = "text", documents: Division | None = None) -> Corpus | Packed:
    """A corpus.

    Args:
        texts: A .txt, .jsonl, .csv or .parquet file, each also with .gz or .zst behind it; a folder of them, or a
            quoted pattern; atlas, the corpus that comes with ffnmem; hf:OWNER/NAME/CONFIG:SPLIT, a data set of the
            Hugging Face hub; or a folder that "pack" wrote.
        text: The column of the texts.
        documents: What a document of a .txt file is: what blank lines separate, a line, or all of it.
            [default: paragraph]
    """
    return fm.corpus.open_corpus(texts, text=text, documents=documents)


def read_tokenizer(model: str = "atlas") -> Any:
    """The tokenizer of a model, which is not loaded.

    Args:
        model: Whose tokenizer: atlas, a folder in Hugging Face layout, or a Hugging Face id such as gpt2.
    """
    from ..models.loading import load_tokenizer

    return load_tokenizer(model)
