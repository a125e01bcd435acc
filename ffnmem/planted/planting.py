"""``plant``: a model whose memories were written by hand, with the truth about them and a corpus that uses them."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from inspect import signature
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from .._version import __version__
from ..core import sheets
from ..core.checked_files import read_json
from ..core.errors import FileError, InputError, counted, quoted
from ..core.files import appearing, check_new_folder, user_folder, write_whole
from ..core.types import PlantedKind, Seed, checked
from ..facts.fact import Fact
from ..facts.formats import load_facts, write_facts
from ..models.configs import quiet
from ..models.loading import load
from ..models.model import Model
from ..show.records import csv_text
from ..show.result import Result

# `Planted`: a model whose memories were written by hand, with the truth about them and a corpus that uses them.

TRUTH, CORPUS, FACTS, CARD = "truth.csv", "corpus.txt", "facts.jsonl", "planted.json"
TYPES = {"i": "whole", "f": "number", "b": "flag", "O": "text", "U": "text"}
"""What a column of the truth holds, by the letter of its NumPy kind; a file of text would not say so."""
COUNTED = {"meanings": ("verdict", "meanings"), "roles": ("role",), "facts": ("role", "position"), "chains": ("role",)}
"""The columns of the truth that its summary counts by."""


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Planted(Result):
    """A planted model. Made by :func:`ffnmem.planted.plant` or, from its folder, by
    :func:`ffnmem.planted.load_planted`.

    Attributes:
        kind: what was planted.
        model: a GPT-2 or a Mixtral like any other.
        truth: one row a neuron: layer, neuron, in mixtures its expert, and what it was made for.
        texts: a corpus that exercises it, one document each.
        facts: those that it was made to recall, if it was made for facts.
        settings: all parameters, the seed among them; the same settings give the same weights.
        pristine: the Hugging Face model as it was built; a GPT-2's ``model`` is a copy of it behind a bridge.
    """

    kind: str
    model: Model
    truth: pd.DataFrame
    texts: tuple[str, ...]
    settings: Mapping[str, Any]
    facts: tuple[Fact, ...] = ()
    pristine: Any = field(default=None, repr=False)

    no_file = "save writes a folder, and fm.planted.load_planted reads it"

    @property
    def seed(self) -> int:
        """What everything random came from."""
        return int(self.settings["seed"])

    def recalled(self) -> list[bool]:
        """For each of the facts: whether the model's top token after its prompt is the true target."""
        return list(self.recall)

    @cached_property
    def recall(self) -> tuple[bool, ...]:
        """What ``recalled`` found."""
        found: list[bool] = []
        for start in range(0, len(self.facts), 64):
            facts = self.facts[start : start + 64]
            prompts = [self.model.tokenize(fact.text, prepend_bos=True) for fact in facts]
            ends = [len(prompt) - 1 for prompt in prompts]
            rows = [prompt + [0] * (max(ends) + 1 - len(prompt)) for prompt in prompts]
            with torch.no_grad():
                logits = self.pristine(torch.tensor(rows), use_cache=False).logits
            best = logits[torch.arange(len(rows)), torch.tensor(ends)].argmax(-1).tolist()
            found += [top == self.model.token_id(f" {fact.target_true}") for top, fact in zip(best, facts, strict=True)]
        return tuple(found)

    @property
    def counts(self) -> pd.DataFrame:
        """One row for each sort of neurons in each layer: layer, what the truth says of it, neurons."""
        sorts = self.truth.groupby(["layer", *COUNTED[self.kind]], sort=True)
        return sorts.size().rename("neurons").reset_index()

    def to_frame(self) -> pd.DataFrame:
        """A copy of ``truth``."""
        return self.truth.copy()

    def to_dict(self, top: int | None = None, *, folder: str | None = None) -> dict[str, Any]:
        """Plain values, ready for JSON: sizes, settings and ``counts``; ``folder``: where it was saved."""
        model = self.model
        return {
            "kind": self.kind,
            "settings": dict(self.settings),
            **({} if folder is None else {"folder": folder}),
            "fingerprint": model.fingerprint,
            "n_layers": model.n_layers,
            "d_model": model.d_model,
            "d_mlp": model.d_mlp,
            "vocabulary": model.d_vocab,
            "texts": len(self.texts),
            "facts": len(self.facts),
            "recalled": sum(self.recall),
            "counts": self.counts.to_dict("records"),
        }

    def save(self, folder: str | Path) -> Path:
        """Write the model in Hugging Face layout, its truth, its corpus and its facts; ``--model FOLDER`` takes it.

        The folder appears whole or not at all. Raises FileError if it holds something already or cannot be made.
        """
        path = check_new_folder(folder)
        with appearing(path) as place, quiet():
            self.pristine.save_pretrained(place)
            self.model.tokenizer.save_pretrained(place)
            write_whole(place / TRUTH, csv_text(self.truth))
            # Blank lines separate the documents of a text file.
            write_whole(place / CORPUS, "\n\n".join(self.texts) + "\n")
            if self.facts:
                write_facts(self.facts, place / FACTS)
            card = {
                "kind": self.kind,
                "settings": dict(self.settings),
                "columns": {str(name): TYPES[kind.kind] for name, kind in self.truth.dtypes.items()},
                "ffnmem": __version__,
            }
            write_whole(place / CARD, json.dumps(card, indent=1) + "\n")
            for weights in place.glob("*.safetensors"):  # which safetensors makes for their owner alone
                shutil.copymode(place / CARD, weights)
        return path

    def summary(self) -> str:
        words = sum(text.count(" ") + 1 for text in self.texts)
        return f"{self.kind!r}, seed {self.seed}: {self.model!r}, {counted(len(self.texts), 'text')} of {words} words"

    def sheet(self, folder: str | None = None) -> sheets.Sheet:
        """How many neurons of each sort there are, and what else; ``folder``: where it was saved."""
        model, written = self.model, folder is not None
        layers = counted(model.n_layers, "layer")
        experts = f" in {count} experts" if (count := self.settings.get("experts")) else ""
        sizes = f"{layers}, d_model {model.d_model}, d_mlp {model.d_mlp}{experts}, {model.d_vocab:,} tokens"
        facts: dict[str, sheets.Content] = {
            "model": sizes,
            "corpus": f"{counted(len(self.texts), 'document')}{f' in {CORPUS}' * written}",
        }
        if self.facts:
            facts["facts"] = f"{len(self.facts):,}{f' in {FACTS}' * written}, {sum(self.recall):,} of them recalled"
        facts["truth"] = f"{counted(len(self.truth), 'neuron')}{f' in {TRUTH}' * written}"
        facts["settings"] = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        if folder is not None:
            words = " ".join(self.texts[0].split()[:5])
            asked = f'attribute "{self.facts[0].text}"' if self.facts else f'decompose "{words}" --layer 0'
            facts["folder"] = folder
            facts["try"] = f"ffnmem {asked} --model {shlex.quote(folder)}"
        return sheets.Sheet.of(self.count_table(), sheets.Facts(facts))

    def count_table(self) -> sheets.Table:
        """How many neurons of each sort there are in each layer."""
        columns = list(COUNTED[self.kind])
        layers = range(self.model.n_layers)
        counts = self.truth.groupby([*columns, "layer"], sort=False).size()
        shown = sheets.rows(*columns, *(sheets.Column(f"layer {layer}", left=False) for layer in layers))
        for key in sorted({index[:-1] for index in counts.index}, key=in_order):
            found = (int(counts.get((*key, layer), 0)) for layer in layers)
            shown.add(*map(str, key), *(f"{count:,}" if count else "–" for count in found))
        return shown.table("neurons planted")


def in_order(key: tuple[Any, ...]) -> tuple[bool, bool, tuple[str, ...]]:
    """By name, the dead and those without a role last; numbers as such."""
    return key[0] == "none", key[0] in ("dead", "inactive"), tuple(f"{part:>6}" for part in map(str, key))


def behind_bridge(hf: Any, tokenizer: Any, name: str) -> Model:
    """The built model as a Model, loaded like any other."""
    hf.config._name_or_path = name
    return load(hf, tokenizer=tokenizer)


@checked
def load_planted(folder: str | Path) -> Planted:
    """A planted model with its truth, its corpus and its facts, from the folder that :meth:`Planted.save` wrote.

    Raises FileError if a file of it is missing or broken; a ModelError where the model itself cannot be loaded.
    """
    path = user_folder(folder)
    if not (path / CARD).is_file():
        raise FileError(f"{folder} holds no planted model: it has no {CARD}, which ffnmem plant writes")
    card = read_json(path / CARD)
    try:
        kind, settings, columns = card["kind"], dict(card["settings"]), dict(card["columns"])
    except (KeyError, TypeError, ValueError):
        raise FileError(f"{path / CARD} is broken: it has no kind, settings and columns of the truth") from None
    truth = read_truth(path / TRUTH, columns)
    try:
        texts = tuple((path / CORPUS).read_text("utf-8").removesuffix("\n").split("\n\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path / CORPUS}: cannot be read as UTF-8 text ({error})") from None
    facts = tuple(load_facts(path / FACTS)) if kind == "facts" or (path / FACTS).exists() else ()
    model = load(path)
    with quiet():
        import transformers

        pristine = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    return Planted(kind, model, truth, texts, settings, facts, pristine)


def read_truth(path: Path, columns: Mapping[str, str]) -> pd.DataFrame:
    """The table of the truth with its columns' types; what is empty stays an empty text. Raises FileError."""
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        if list(frame.columns) != list(columns):
            raise ValueError(f"columns {list(frame.columns)} instead of {list(columns)}")
        for name, kind in columns.items():
            if kind == "flag":
                frame[name] = frame[name].map({"True": True, "False": False}).astype(bool)
            elif kind != "text":
                frame[name] = pd.to_numeric(frame[name]).astype("int64" if kind == "whole" else "float64")
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        raise FileError(f"{path} cannot be read as the truth of a planted model ({error})") from None
    return frame


# `plant`: a planted model by the name of what is planted.


def builder(kind: PlantedKind) -> Callable[..., Planted]:
    """The function behind a kind; raises InputError."""
    found: Callable[..., Planted] = getattr(import_module(f".{kind}", __package__), f"plant_{kind}")
    return found


def defaults(kind: PlantedKind) -> dict[str, Any]:
    """The parameters of a kind, the seed among them, with their defaults; raises InputError."""
    return {name: parameter.default for name, parameter in signature(builder(kind)).parameters.items()}


@checked
def plant(kind: PlantedKind = "meanings", *, seed: Seed = 0, **parameters: Any) -> Planted:
    """A GPT-2 whose memories are written by hand, so that the truth about them is known.

    Args:
        kind: ``"meanings"`` (neurons of one concept, of several, dead; with ``experts``, those of a Mixtral),
            ``"roles"`` (prediction, suppression, partition, entropy, position, token frequency, token detectors, dead),
            ``"facts"`` (recalled early, at the subject's last token, or late, at the last token).
        seed: of everything random; the same seed and parameters give the same weights.
        parameters: of the kind, see ``plant_meanings``, ``plant_roles`` and ``plant_facts`` in ``ffnmem.planted``.

    Returns:
        A :class:`Planted`: ``.model``, ``.truth`` (one row a neuron), ``.texts`` (a corpus that exercises it),
        ``.facts``, ``.settings`` and ``.save(folder)``.

    Raises: InputError: no such kind, no such parameter of it, or a value that it cannot have.
    """
    known = defaults(kind)
    for name, value in parameters.items():
        if name not in known:
            raise InputError(f"{kind} has no parameter {quoted(name)}: it takes {', '.join(known)}")
        if not isinstance(value, str if isinstance(known[name], str) else Real):
            wanted = "a text" if isinstance(known[name], str) else "a number"
            raise InputError(f"{name} must be {wanted}, not {quoted(value)}")
        if isinstance(value, Real) and not isfinite(value):
            raise InputError(f"{name} must be a finite number, not {value}")
    return builder(kind)(seed=seed, **parameters)
