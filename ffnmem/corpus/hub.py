"""Data sets of the Hugging Face hub, streamed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import FileError, InputError, MissingExtraError, quoted
from ..foreign import first_line
from .problems import Document, Problems
from .readers import from_records

HUB = "hf:"
SPLIT = "train"


@dataclass(frozen=True)
class HubName:
    """What stands behind ``hf:``. ``choices`` are (data set, configuration): ``a/b`` may be an owner's data set or a
    configuration of one without owner."""

    choices: tuple[tuple[str, str | None], ...]
    split: str


def read_name(source: str) -> HubName:
    """``hf:name``, ``hf:owner/name``, ``hf:owner/name/config``, ``hf:name/config``, each with ``:split`` behind it."""
    body, _, split = source.removeprefix(HUB).partition(":")
    parts = body.split("/")
    if not all(part.strip() for part in parts) or len(parts) > 3 or (":" in source.removeprefix(HUB) and not split):
        raise InputError(
            f"{quoted(source)} names no data set: write hf:owner/name, hf:owner/name/config or hf:name:split"
        )
    if len(parts) == 1:
        choices: tuple[tuple[str, str | None], ...] = ((parts[0], None),)
    elif len(parts) == 2:
        choices = ((body, None), (parts[0], parts[1]))
    else:
        choices = (("/".join(parts[:2]), parts[2]),)
    return HubName(choices, split or SPLIT)


def open_hub(source: str, column: str) -> Callable[[Problems], Iterator[Document]]:
    """A reader of a data set. The hub is asked now, the texts come later.

    Raises:
        InputError: no such name can be. MissingExtraError: ``datasets`` is not installed. FileError: the hub has no
            such data set, or cannot be reached.
    """
    name = read_name(source)
    try:
        import datasets
    except ImportError:
        raise MissingExtraError(f"{quoted(source)} needs the package datasets: pip install 'ffnmem[hf]'") from None
    path, config = first_known(name, source)
    try:
        # Version 4 and later never run code of a data set's own, so there is nothing to switch off.
        stream = datasets.load_dataset(path, config, split=name.split, streaming=True)
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        raise FileError(f"{source} cannot be opened: {first_line(error)}") from None

    def read(problems: Problems) -> Iterator[Document]:
        return from_records(records(stream, source), column, source, problems, FileError)

    return read


def first_known(name: HubName, source: str) -> tuple[str, str | None]:
    """The first reading of a name that the hub knows: one short question, where ``datasets`` would retry for long."""
    import huggingface_hub

    session = huggingface_hub.get_session()
    library = sys.modules[type(session).__module__.partition(".")[0]]  # the hub's HTTP library of the day
    for path, config in name.choices:
        try:
            huggingface_hub.HfApi().dataset_info(path, timeout=15)
        except huggingface_hub.errors.HfHubHTTPError as error:
            if error.response.status_code not in (401, 404):
                raise FileError(f"{source}: the Hugging Face hub refused: {first_line(error)}") from None
        except (library.HTTPError, OSError) as error:
            raise FileError(f"{source}: the Hugging Face hub cannot be reached: {first_line(error)}") from None
        except ValueError as error:
            raise InputError(f"{quoted(source)} names no data set: {first_line(error)}") from None
        else:
            return path, config
    raise FileError(f"{source}: the Hugging Face hub has no such data set")


def records(stream: Any, source: str) -> Iterator[tuple[int, Any]]:
    """Numbered records; raises FileError when the connection breaks."""
    iterator, number = iter(stream), 0
    broken = network_errors()
    while True:
        number += 1
        try:
            record = next(iterator)
        except StopIteration:
            return
        except broken as error:
            raise FileError(f"{source} broke off at record {number}: {first_line(error)}") from None
        yield number, record


def network_errors() -> tuple[type[Exception], ...]:
    """What a stream that breaks raises: OSErrors, broken records, and errors of the HTTP libraries that are in use."""
    found: list[type[Exception]] = [OSError, ValueError]
    for library, error in (("httpx", "HTTPError"), ("aiohttp", "ClientError"), ("requests", "RequestException")):
        if library in sys.modules:
            found.append(getattr(sys.modules[library], error))
    return tuple(found)
