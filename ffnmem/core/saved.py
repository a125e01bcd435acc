"""Any result as one file, and back to the last bit: a zip of ``result.json``, arrays and tables.

``result.json`` has the fields by name. Texts, finite numbers, true, false, null, lists and objects stand for
themselves; anything else is an object with one field, whose name begins with ``$`` and says what it is:
``{"$tuple": [1, 2]}``, ``{"$tensor": "arrays/logits.npy"}``, ``{"$Provenance": {…}}``. Classes are looked up among
those that the annotations of the loaded class lead to: no file can name another. The zip has a checksum of each part.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import types
import typing
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from .._version import __version__
from . import sheets
from .checked_files import check_regular
from .errors import FfnmemError, FileError, InputError, ModelError
from .files import check_destination, replacing, user_path
from .foreign import foreign
from .provenance import Live, Provenance

SCHEMA = 1
CONTENT, MARK = "result.json", "ffnmem result:"  # a part of each file, and the comment at its end
NOT_SAVED: Mapping[str, bool] = types.MappingProxyType({"saved": False})
"""The metadata of a field that no file holds: what comes back has its default."""
SHOWN = [thing for thing in vars(sheets).values() if isinstance(thing, type) and dataclasses.is_dataclass(thing)]
"""What stands in the cells of a table, which no annotation says."""


def save_result(result: Any, path: str | Path, hint: Any = None, run: str = "") -> Path:
    """Write a result; the file appears whole or not at all. A model or store that it holds is only named.

    Args:
        result: any value whose parts are plain values, arrays, tables, and classes that ``hint`` leads to.
        path: of the file.
        hint: the annotation that :func:`load_result` will be given; default the class of the result.
        run: what the result was computed from, if that is to be compared when it is read.

    Returns: The path.

    Raises: FileError: it cannot be written. InputError: it holds something that no file holds.
    """
    target = check_destination(path)
    kind: Any = type(result) if hint is None else hint
    with replacing(target) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        packed = Writer(archive, classes_of(kind)).pack(result, "")
        content = {"kind": name_of(kind), "schema": SCHEMA, "ffnmem": __version__, "run": run, "result": packed}
        archive.comment = f"{MARK} {name_of(kind)}".encode()
        text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)
        # ZipInfo, and not a name, so that no time of day makes two equal results different files.
        archive.writestr(zipfile.ZipInfo(CONTENT), text.encode("utf-8", "surrogatepass"), zipfile.ZIP_DEFLATED)
    return target


def load_result(kind: Any, path: str | Path, live: Sequence[Live] = (), run: str = "") -> Any:
    """The result in a file that :func:`save_result` wrote.

    Args:
        kind: its class, or another annotation.
        path: of the file.
        live: the models or stores that it holds. Tensors come to where the first one computes.
        run: what it must have been computed from.

    Raises:
        FileError: no such file, another kind of file, one of another version or of another run, or a damaged one.
        InputError: something live is missing, or no part of it. ModelError: it is of another model.
    """
    name, file = name_of(kind), user_path(path)
    check_regular(file, f"there is no {path}")
    if not zipfile.is_zipfile(file):
        raise FileError(f"{path} is no saved {name}, or it is truncated")
    with foreign(FileError, f"{path} is damaged"), zipfile.ZipFile(file) as archive:
        content = json.loads(archive.read(CONTENT).decode("utf-8", "surrogatepass"))
        if content["kind"] != name:
            raise FileError(f"{path} is no saved {name} but a saved {content['kind']}")
        if archive.comment != f"{MARK} {name}".encode():  # the file's last bytes
            raise FileError(f"{path} is truncated or damaged")
        if content["schema"] != SCHEMA:
            raise FileError(f"{path} is of another version of ffnmem ({content['ffnmem']}): install that to read it")
        if content["run"] != run:
            raise FileError(f"{path} is of another run: remove it to compute it again")
        reader = Reader(archive, name, file, classes_of(kind), live)
        result = reader.unpack(content["result"])
        if isinstance(kind, type) and not isinstance(result, kind):
            raise FileError(f"{path} is damaged: it holds no {name}")
    if unused := [given for given in live if given not in reader.used]:
        raise InputError(f"{path} holds no {type(unused[0]).__name__}: load it without one")
    return result


# -- classes ---------------------------------------------------------------------------------------------------------


def name_of(kind: Any) -> str:
    """What a file is called after the annotation of its result: the name of a class."""
    return kind.__name__ if isinstance(kind, type) else str(kind)


@cache
def hints_of(cls: Any) -> dict[str, Any]:
    """By field that is saved, what it is annotated with, of a dataclass or a named tuple; empty of another class."""
    names = (
        [field.name for field in dataclasses.fields(cls) if field.metadata.get("saved", True)]
        if dataclasses.is_dataclass(cls)
        else getattr(cls, "_fields", ())
    )
    # Modules that need pandas for nothing else import it for the type checker alone.
    hints = typing.get_type_hints(cls, localns={"pd": pd}) if names else {}
    return {name: hints[name] for name in names}


@cache
def classes_of(kind: Any) -> dict[str, type[Any]]:
    """By name, the classes that a file may hold: those with fields, and live ones, that an annotation leads to."""
    found: dict[str, type[Any]] = {}
    ahead: list[Any] = [kind, Provenance, *SHOWN]
    while ahead:
        hint = ahead.pop()
        ahead += typing.get_args(hint)
        is_class = isinstance(hint, type)
        is_live = is_class and issubclass(hint, Live)
        parts = hints_of(hint) if is_class and not is_live else {}
        if hint in found.values() or not (is_live or parts):
            continue
        if found.setdefault(hint.__name__, hint) is not hint:
            raise TypeError(f"{kind} leads to two classes of the name {hint.__name__}")
        ahead += parts.values()
    return found


# -- writing and reading ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Writer:
    """Packs values as JSON, and writes their arrays and tables into an archive."""

    archive: zipfile.ZipFile
    classes: Mapping[str, type[Any]]

    def pack(self, value: Any, at: str) -> Any:
        """A value as JSON; ``at``: the way to it. Raises InputError."""
        kind = type(value)
        if value is None or kind in (str, bool, int) or (kind is float and math.isfinite(value)):
            return value
        if kind is list:
            return [self.pack(item, f"{at}.{place}") for place, item in enumerate(value)]
        if kind is dict and all(type(name) is str and not name.startswith("$") for name in value):
            return {name: self.pack(item, f"{at}.{name}" if at else name) for name, item in value.items()}
        if self.classes.get(kind.__name__) is kind:
            return {f"${kind.__name__}": self.fields(value, at)}
        tag, content = self.tagged(value, at)
        return {f"${tag}": content}

    def fields(self, record: Any, at: str) -> dict[str, Any]:
        """The fields of a dataclass or a named tuple; of a model or a store only which one it is."""
        kind: Any = type(record)
        packed, made = {}, getattr(record, "provenance", None)
        for name in hints_of(kind):
            value = getattr(record, name)
            if isinstance(value, Live):
                cls = next(cls for cls in self.classes.values() if issubclass(cls, Live) and isinstance(value, cls))
                title, identity = value.identified()
                # A model may have been edited since: what counts is the one that the numbers are of.
                identity = made.fingerprint if isinstance(made, Provenance) else identity
                packed[name] = {"$live": [cls.__name__, title, identity]}
            else:
                packed[name] = self.pack(value, f"{at}.{name}" if at else name)
        return packed

    def tagged(self, value: Any, at: str) -> tuple[str, Any]:
        """What a value is that JSON does not have, and what it is made of again."""
        match value:
            case np.generic() if value.dtype.kind in "biufU":
                return "number", [value.dtype.str, self.pack(value.item(), at)]
            case float():
                return "float", str(value)
            case range():
                return "range", [value.start, value.stop, value.step]
            case tuple():
                return "tuple", self.pack(list(value), at)
            case dict():
                return "dict", [[self.pack(name, at), self.pack(item, f"{at}.{name}")] for name, item in value.items()]
            case types.MappingProxyType():
                return "fixed", self.pack(dict(value), at)
            case np.ndarray() if value.dtype.kind in "biufU":
                return "array", self.array(value, at)
            case torch.Tensor() if value.dtype == torch.bfloat16:  # which NumPy does not have
                return "bfloat16", self.array(value.detach().cpu().contiguous().view(torch.int16).numpy(), at)
            case torch.Tensor():
                return "tensor", self.array(value.detach().cpu().numpy(), at)
            case pd.DataFrame():
                return "frame", self.frame(value, at)
        raise InputError(f"{at} is a {type(value).__name__}, which no file holds")

    def array(self, array: np.ndarray, at: str) -> str:
        data = io.BytesIO()
        np.lib.format.write_array(data, array, allow_pickle=False)
        return self.add("arrays", at, "npy", data)

    def frame(self, frame: pd.DataFrame, at: str) -> dict[str, Any]:
        """A table as Parquet; its columns of objects that are not all texts, which Arrow does not have, as JSON."""
        objects = [name for name, dtype in frame.dtypes.items() if isinstance(dtype, np.dtypes.ObjectDType)]
        mixed = [name for name in objects if {type(value) for value in frame[name]} - {str, type(None)}]
        packed = {name: self.pack(frame[name].tolist(), f"{at}.{name}") for name in mixed}
        data = io.BytesIO()
        with foreign(InputError, f"{at} is a table that no file holds"):
            if not frame.columns.is_unique or not all(isinstance(name, str) for name in frame.columns):
                raise ValueError("its columns must have names, each another one")
            import pyarrow as pa  # quick starts have no use for it
            import pyarrow.parquet as pq

            pq.write_table(pa.Table.from_pandas(frame.assign(**dict.fromkeys(mixed))), data)
        attrs = self.pack(dict(frame.attrs), f"{at}.attrs")
        return {"file": self.add("frames", at, "parquet", data), "objects": objects, "mixed": packed, "attrs": attrs}

    def add(self, folder: str, at: str, ending: str, data: io.BytesIO) -> str:
        """The name of a file in the archive, after the way to its value."""
        name = stem = f"{folder}/" + re.sub(r"[^\w.-]", "_", at)[:100]
        while f"{name}.{ending}" in self.archive.NameToInfo:
            name = f"{stem}-{len(self.archive.NameToInfo)}"
        self.archive.writestr(zipfile.ZipInfo(f"{name}.{ending}"), data.getbuffer())
        return f"{name}.{ending}"


@dataclasses.dataclass
class Reader:
    """Makes values of what a :class:`Writer` packed. ``used``: the live ones among those that were given."""

    archive: zipfile.ZipFile
    name: str
    path: Path
    classes: Mapping[str, type[Any]]
    live: Sequence[Live]
    used: list[Live] = dataclasses.field(default_factory=list)

    def unpack(self, packed: Any) -> Any:
        if isinstance(packed, list):
            return [self.unpack(item) for item in packed]
        if not isinstance(packed, dict):
            return packed
        tag = next(iter(packed), "")
        if not tag.startswith("$"):
            return {name: self.unpack(item) for name, item in packed.items()}
        content = packed[tag]
        match tag.removeprefix("$"):
            case "float":
                return float(content)
            case "number":
                return np.dtype(content[0]).type(self.unpack(content[1]))
            case "range":
                return range(*content)
            case "tuple":
                return tuple(self.unpack(content))
            case "dict":
                return {self.unpack(name): self.unpack(item) for name, item in content}
            case "fixed":
                return types.MappingProxyType(self.unpack(content))
            case "array":
                return self.array(content)
            case "bfloat16":
                return torch.from_numpy(self.array(content)).view(torch.bfloat16).to(self.device)
            case "tensor":
                return torch.from_numpy(self.array(content)).to(self.device)
            case "frame":
                return self.frame(**content)
            case "live":
                return self.given(*content)
            case name:
                return self.record(self.classes[name], content)

    @property
    def device(self) -> Any:
        return next((given.device for given in self.live), "cpu")

    def array(self, name: str) -> np.ndarray:
        # Read whole, since only then its checksum is looked at.
        return np.lib.format.read_array(io.BytesIO(self.archive.read(name)), allow_pickle=False)

    def frame(self, file: str, objects: Sequence[str], attrs: Any, mixed: Mapping[str, Any]) -> pd.DataFrame:
        import pyarrow.parquet as pq

        frame = pq.read_table(io.BytesIO(self.archive.read(file))).to_pandas()
        for name in objects:
            values = (
                self.unpack(mixed[name]) if name in mixed else frame[name].where(frame[name].notna(), None).tolist()
            )
            frame[name] = pd.Series(values, frame.index, dtype=object)
        frame.attrs = self.unpack(attrs)
        return frame

    def given(self, kind: str, title: str, identity: str) -> Live:
        """What was given in place of a model or store that the file only names."""
        cls = self.classes[kind]
        found = next((given for given in self.live if isinstance(given, cls)), None)
        if found is None:
            call = f"{self.name}.load(path, {kind.lower()})"
            raise InputError(f"{self.path} is of {title} ({identity}), which no file holds: give it, {call}")
        now, other = found.identified()
        if other != identity:
            raise ModelError(f"{self.path} is of {title} ({identity}), not of {now} ({other})")
        self.used.append(found)
        return found

    def spared(self, cls: type[Any], name: str, packed: Any) -> bool:
        """Whether a field is live, need not be there, and nothing was given."""
        live = isinstance(packed, dict) and "$live" in packed and not self.live
        return live and type(None) in typing.get_args(typing.cast(Any, hints_of)(cls).get(name))

    def record(self, cls: type[Any], packed: Mapping[str, Any]) -> Any:
        values = {name: None if self.spared(cls, name, part) else self.unpack(part) for name, part in packed.items()}
        try:
            return cls(**values)
        except FfnmemError as error:
            raise FileError(f"{self.path} holds no {cls.__name__} that can be used: {error}") from None
