"""Whoever is asked: a loaded model as a function from text to text, and the answers that are kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import isfunction
from pathlib import Path
from typing import Any, TypeVar

from ..core.errors import FileError, InputError, InputTypeError, quoted
from ..core.files import check_destination, check_ordinary, writing
from ..core.progress import Phase, Progress
from ..core.types import Count, checked
from ..models.answers import generate
from ..models.model import Model

HEAD = '{"kind": "ffnmem answers", "schema": 1}'
Read = TypeVar("Read")


@checked
def ask_model(model: Model, new: Count = 60) -> Callable[[str], str]:
    """A function that puts a question to a model and returns its answer, for :func:`ffnmem.describe`.

    The question is a user's message by the model's chat template, where it has one. The answer is decoded greedily.
    Where the question contains the text of a special token, such as one that ends a message, a space breaks it up;
    marks of a template that are ordinary text, such as ``[INST]``, are not.

    Args:
        model: from :func:`ffnmem.load`. new: tokens of an answer, at most.

    Raises: InputError, when called: a question longer than the model reads, or weights that have changed.
    """
    special = [str(token) for token in model.tokenizer.added_tokens_decoder.values() if token.special]

    def ask(question: str) -> str:
        if model.fingerprint != asked:
            raise InputError(f"the weights of {model.name} changed since ask_model was called: call it again")
        for token in special:
            question = question.replace(token, f"{token[:1]} {token[1:]}" if len(token) > 1 else " ")
        has_template = getattr(model.tokenizer, "chat_template", None)
        text = model.chat_text([{"role": "user", "content": question}]) if has_template else question
        length = len(model.ids_of(text))
        if length >= model.n_ctx:
            raise InputError(
                f"a question has {length} tokens; {model.name} reads at most {model.n_ctx}: take a model that reads "
                "more, or fewer or shorter contexts (shown, together, context)"
            )
        return str(model.tokenizer.decode(generate(model, model.tokenize(text), new), skip_special_tokens=True))

    asked = model.fingerprint
    ask.__qualname__ = f"{model.name} {asked}, {new} tokens"
    return ask


class Answers:
    """Asks each question once, and logs it: asked, layer, neuron, question, answer, and whether that could be read.

    With a file of JSON lines, what it has is not asked again, and answers are added as they come.
    """

    def __init__(self, ask: Callable[[str], str], path: str | Path | None, progress: Progress | None) -> None:
        self.ask, self.name = ask, getattr(ask, "__qualname__", type(ask).__qualname__)
        self.path = None if path is None else check_destination(path)
        if self.path is not None and (not isfunction(ask) or self.name.endswith("<lambda>")):
            raise InputError(
                f"answers are kept by the name of the function that gave them, and {quoted(ask)} has none of its own: "
                "give a function made by def, or leave out= out"
            )
        self.progress, self.log = progress, list[tuple[Any, ...]]()
        self.known = read_answers(self.path, self.name) if self.path is not None and self.path.exists() else {}

    def begin(self, phase: Phase, total: int) -> None:
        """Count questions anew."""
        self.phase, self.total, self.done = phase, total, 0

    def put(self, asked: str, layer: int, neuron: int, question: str, read: Callable[[str], Read]) -> Read:
        """What can be read in the answer to a question; nothing (empty, None) where that is not possible."""
        if question not in self.known:
            answer = self.ask(question)
            if not isinstance(answer, str):
                raise InputTypeError(f"ask must answer with a text, not {quoted(answer)}")
            self.known[question] = answer.encode("utf-8", "replace").decode()
            if self.path is not None:
                line = json.dumps({"asked": self.name, "question": question, "answer": self.known[question]})
                with writing(self.path), self.path.open("a", encoding="utf-8") as file:
                    file.write(f"\n{line}" if file.tell() else f"{HEAD}\n{line}")  # so ends one that was cut short
        found = read(self.known[question])
        self.log.append((asked, layer, neuron, question, self.known[question], bool(found)))
        self.done += 1
        if self.progress is not None:
            self.progress(self.phase, self.done, self.total)
        return found


def read_answers(path: Path, name: str) -> dict[str, str]:
    """The answers that a file has of somebody, without lines that were cut short. Raises FileError, InputError."""
    try:
        head, *lines = check_ordinary(path).read_text("utf-8", "replace").split("\n")
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from None
    if head != HEAD:
        raise InputError(f"{path} is there already and holds no answers of ffnmem: name another file")
    found: dict[str, str] = {}
    for line in lines:
        try:
            value = json.loads(line)
            if value["asked"] == name:
                found[value["question"]] = str(value["answer"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # asked again
    return found
