"""What a name means: an embedded model, a folder on this disk, or an id of the Hugging Face hub."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import FileError, ModelError, ModelNotFoundError
from ..files import user_path
from ..foreign import first_line
from ..resources import EMBEDDED, embedded_folder

READ = (".json", ".safetensors", ".model", ".txt", ".jinja")
"""The files of a model's folder that are opened."""


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no advice from the libraries below while a model loads; as it was afterwards."""
    import transformers

    library = transformers.logging
    bars, level = library.is_progress_bar_enabled(), library.get_verbosity()
    root_level = logging.getLogger().level
    library.disable_progress_bar()
    library.set_verbosity_error()
    logging.getLogger().setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.set_verbosity(level)
        logging.getLogger().setLevel(root_level)
        if bars:
            library.enable_progress_bar()


def locate(source: str | Path) -> tuple[str, str, bool]:
    """The name to show, what to hand to Hugging Face, and whether it lies on this disk."""
    name = str(source)
    if not name.strip():
        raise ModelNotFoundError(f"no model folder at {name!r}")
    if name in EMBEDDED:
        return name, str(embedded_folder(name)), True
    path = model_path(source)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"{name} is a folder without config.json, so it holds no Hugging Face model")
        for file in path.iterdir():
            if file.suffix in READ and not file.is_file():  # a folder, a pipe that nobody writes to, a device
                raise ModelError(f"{name}: {file.name} is no ordinary file")
        if not any(path.glob("*.safetensors")) and any(path.glob("*.bin")):
            raise ModelError(
                f"{name} has only pickled weights (.bin), which are never opened: save them as safetensors"
            )
        return name, str(path), True
    if path.is_file():
        raise ModelNotFoundError(f"{name} is a file; give the folder that holds config.json and the weights")
    if isinstance(source, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelNotFoundError(f"no model folder at {name!r}")
    return name, name, False


def model_path(source: str | Path) -> Path:
    """A source as a path, whether anything is there or not; raises ModelNotFoundError where nothing can be."""
    try:
        return user_path(source)
    except FileError as error:
        raise ModelNotFoundError(str(error)) from None


def is_cached(name: str) -> bool:
    """Whether a hub model's files are on this disk already, so that no network is needed."""
    import huggingface_hub

    try:
        found = {
            file: isinstance(huggingface_hub.try_to_load_from_cache(name, file), str)
            for file in ("config.json", "model.safetensors", "model.safetensors.index.json")
        }
    except ValueError:  # no valid id
        return False
    return found["config.json"] and (found["model.safetensors"] or found["model.safetensors.index.json"])


def ask_hub(name: str) -> bool:
    """One short question to the hub, so that a wrong name or a missing network fails at once. Always returns False.

    Raises ModelNotFoundError.
    """
    import huggingface_hub

    session = huggingface_hub.get_session()
    library = sys.modules[type(session).__module__.partition(".")[0]]  # the hub's HTTP library of the day
    try:
        huggingface_hub.HfApi().model_info(name, timeout=15)
    except huggingface_hub.errors.HfHubHTTPError as error:
        reason = "has no such model" if error.response.status_code in (401, 404) else f"refused: {first_line(error)}"
    except (library.HTTPError, OSError) as error:
        reason = f"cannot be reached: {first_line(error)}"
    except ValueError as error:
        reason = f"takes no such id: {first_line(error)}"
    else:
        return False
    embedded = ", ".join(EMBEDDED)
    raise ModelNotFoundError(
        f"no model {name!r}: not embedded ({embedded}), no folder here, and the Hugging Face hub {reason}"
    )
