"""Questions to whoever explains or judges: each is asked once, and what was answered is kept."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.checked_files import digest_of, parsed
from ..core.errors import FileError, InputError, InputTypeError, quoted
from ..core.files import check_destination, check_ordinary, writing
from ..core.progress import Phase, Progress
from .endpoint import Endpoint
from .prompts import Messages

Asker = Callable[[Messages], str]
KIND, SCHEMA = "ffnmem answers", 1


@dataclass(frozen=True)
class Question:
    """``kind``: "description", or the score that it is for."""

    kind: str
    layer: int
    neuron: int
    messages: Messages


def name_asker(asker: Asker) -> str:
    """Who is asked, for provenance."""
    if isinstance(asker, Endpoint):
        return asker.name
    return f"function {getattr(asker, '__qualname__', type(asker).__qualname__)}"


def question_key(asker: Asker, messages: Messages) -> str:
    """What tells a question to somebody from every other."""
    identity = asker.identity() if isinstance(asker, Endpoint) else {"name": name_asker(asker)}
    return digest_of({"asker": identity, "messages": messages})


class Answers:
    """Asks, and keeps what was answered: in a file of JSON lines where one is named, which is read first.

    Attributes:
        rows: what was asked in this call, answered now or before: asked, layer, neuron, asker, messages, answer.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.path = None if path is None else check_destination(path)
        self.known: dict[str, str] = {}
        self.rows: list[tuple[Any, ...]] = []
        self.lock = threading.Lock()
        if self.path is not None and self.path.exists():
            self.known = read_answers(self.path)

    def ask(
        self, asker: Asker, questions: Sequence[Question], progress: Progress | None = None, phase: Phase = "explain"
    ) -> list[str]:
        """The answers, in order; empty where there was none. Several at once only of an endpoint.

        Raises: EndpointError, InputError. What was answered before is kept.
        """
        keys = [question_key(asker, question.messages) for question in questions]
        missing = {key: question for key, question in zip(keys, questions, strict=True) if key not in self.known}
        done = len(keys) - len(missing)
        for _ in self.answered(asker, missing):
            done += 1
            if progress is not None:
                progress(phase, done, len(keys))
        for key, question in zip(keys, questions, strict=True):
            asked = (question.kind, question.layer, question.neuron, name_asker(asker))
            self.rows.append((*asked, json.dumps(question.messages, ensure_ascii=False), self.known[key]))
        return [self.known[key] for key in keys]

    def answered(self, asker: Asker, missing: Mapping[str, Question]) -> Iterator[None]:
        """Each as it comes."""
        if not isinstance(asker, Endpoint):  # which may be good for one thread only
            for key, question in missing.items():
                self.answer(asker, key, question)
                yield
            return
        todo, done = iter(missing.items()), queue.SimpleQueue[BaseException | None]()
        stopped = threading.Event()

        def work() -> None:
            while not stopped.is_set():
                with self.lock:
                    one = next(todo, None)
                if one is None:
                    return
                try:
                    self.answer(asker, *one)
                    done.put(None)
                except BaseException as error:  # noqa: BLE001 (raised below)
                    done.put(error)
                    return

        for _ in range(min(asker.together, len(missing))):
            threading.Thread(target=work, daemon=True).start()  # which keep nobody from ending
        try:
            for _ in missing:
                error = done.get()
                if error is not None:
                    raise error
                yield
        finally:
            stopped.set()

    def answer(self, asker: Asker, key: str, question: Question) -> None:
        found = asker([dict(one) for one in question.messages])
        if not isinstance(found, str):
            raise InputTypeError(f"{name_asker(asker)} must answer with a text, not {quoted(found)}")
        found = found.encode("utf-8", "replace").decode()
        with self.lock:
            self.known[key] = found
            if self.path is not None:
                self.keep(key, name_asker(asker), question, found)

    def keep(self, key: str, asker: str, question: Question, answer: str) -> None:
        """Append a line. Raises FileError."""
        assert self.path is not None
        line = {
            "key": key, "asked": question.kind, "layer": question.layer, "neuron": question.neuron, "asker": asker,
            "messages": question.messages, "answer": answer,
        }  # fmt: skip
        with writing(self.path):
            new = not self.path.exists()
            with self.path.open("ab") as file:
                head = {"kind": KIND, "schema": SCHEMA}
                lines = [head, line] if new else [line]
                # A line that a kill cut short is ended first, and stays unread.
                cut = not new and not ends_with_newline(self.path)
                file.write(
                    b"\n" * cut + b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in lines)
                )


def ends_with_newline(path: Path) -> bool:
    """Whether a file's last line is whole."""
    with path.open("rb") as file:
        file.seek(0, 2)
        if not file.tell():
            return True
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def read_answers(path: Path) -> dict[str, str]:
    """What a file of answers holds, by key; a line that a kill cut short is left out. Raises FileError, InputError."""
    check_ordinary(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        head = json.loads(lines[0])
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or head.get("kind") != KIND:
        raise InputError(f"{path} is there already and holds no answers of ffnmem: name another file")
    if head.get("schema") != SCHEMA:
        raise FileError(f"{path} is of another version of ffnmem (schema {head.get('schema')}): name another file")
    found: dict[str, str] = {}
    for line in lines[1:]:
        if not line.strip():
            continue
        try:
            value = parsed(path, line)
            found[value["key"]] = str(value["answer"])
        except (FileError, KeyError, TypeError):
            continue  # cut short, and asked again
    return found
