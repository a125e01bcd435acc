"""Every result as a file: back to the last bit, and refused where it is not what was written."""

from __future__ import annotations

import importlib
import pkgutil
import types
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, ModelError
from ffnmem.core.plain_values import plain_value
from ffnmem.core.provenance import Live, Provenance
from ffnmem.core.saved import load_result, save_result
from ffnmem.core.sheets import Sheet
from ffnmem.scanning import Store
from ffnmem.show.result import Result

from .editing.edits import made as random_edit
from .evaluation.made import EIFFEL
from .examples import EXAMPLES, Examples
from .helpers import PROMPT, refuses, rewritten


def classes(base: type[Any] = Result) -> Iterator[type[Any]]:
    for cls in base.__subclasses__():
        if cls.__module__.startswith("ffnmem."):
            if "__dataclass_fields__" in vars(cls) and not cls.__subclasses__():  # a base of results, and none itself
                yield cls
            yield from classes(cls)


for module in pkgutil.walk_packages(fm.__path__, "ffnmem."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
RESULTS = {cls.__name__: cls for cls in classes()}


FORMATS_OF_THEIR_OWN = {"Edit", "JacobianLens", "SecondMoment"}
FOLDERS = {"Packed", "Store"}


def same(found: Any, expected: Any, at: str = "") -> None:
    """Assert that two values are of one type and equal to the last bit."""
    assert type(found) is type(expected), at
    if isinstance(expected, Live):
        assert found is expected, at
    elif isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(found, expected, check_exact=True, check_column_type=True)
        same(found.attrs, expected.attrs, f"{at}.attrs")
    elif isinstance(expected, Tensor | np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), at
        if isinstance(expected, Tensor):
            found, expected = (one.reshape(-1).view(torch.uint8).numpy() for one in (found, expected))
        assert found.tobytes() == expected.tobytes() if found.dtype != object else (found == expected).all(), at
    elif is_dataclass(expected):
        for one in (one for one in fields(expected) if one.metadata.get("saved", True)):  # type: ignore[arg-type]
            same(getattr(found, one.name), getattr(expected, one.name), f"{at}.{one.name}")
    elif isinstance(expected, Mapping):
        same(list(found), list(expected), at)
        for name, value in expected.items():
            same(found[name], value, f"{at}.{name}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), at
        for place, pair in enumerate(zip(found, expected, strict=True)):
            same(*pair, f"{at}[{place}]")  # type: ignore[misc]
    elif expected is pd.NA or expected == expected:
        assert found is expected or found == expected, at
    else:
        assert found != found, at


def live_of(result: Any) -> list[Live]:
    """The model or store that a result holds, somewhere."""
    if isinstance(result, Live):
        return [result]
    parts = result if isinstance(result, list | tuple) else [getattr(result, f.name) for f in fields(result)]
    found = [
        one for part in parts if isinstance(part, Live | list | tuple) or is_dataclass(part) for one in live_of(part)
    ]
    return found[:1]


def test_every_result_is_tried() -> None:
    left = set(RESULTS) ^ (set(EXAMPLES) | FORMATS_OF_THEIR_OWN | FOLDERS)
    assert not left, (
        f"to be added to EXAMPLES of examples.py, or FORMATS_OF_THEIR_OWN or FOLDERS above, or taken from there: {left}"
    )


@pytest.mark.filterwarnings("ignore::ffnmem.FfnmemWarning")  # a random model prefers what it likes
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_result_comes_back(name: str, examples: Examples, tmp_path: Path) -> None:
    """All of its fields, and what is made of them; and another kind of file is no such result."""
    found = getattr(examples, name)
    if name == "Neuron":
        vars(found).pop("meanings", None)  # read before another test kept some beside the store they share
    path = found.save(tmp_path / "found.zip")
    again = type(found).load(path, *live_of(found))
    assert type(found) is RESULTS[name]
    same(again, found)
    same(again.to_frame(), found.to_frame())
    same(again.to_dict(), found.to_dict())
    same(again.sheet(), found.sheet())
    assert repr(again) == repr(found)
    other = fm.ffn.Memory if name != "Memory" else fm.Fact
    with refuses(FileError, OSError, "found.zip", f"is no saved {other.__name__} but a saved {name}"):
        other.load(path)
    assert path.stat().st_mode & 0o044 == 0o044
    data = path.read_bytes()
    for part in zipfile.ZipFile(path).infolist():
        place = part.header_offset + 30 + len(part.filename) + part.compress_size // 2
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with refuses(FileError, OSError, "found.zip is damaged"):
            type(found).load(path, *live_of(found))
    for end in (0, len(data) - 1):
        path.write_bytes(data[:end])
        with refuses(FileError, OSError, "found.zip"):
            type(found).load(path, *live_of(found))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["found.zip"]


def test_folders_are_no_files(tiny_store: Store, tmp_path: Path) -> None:
    """One line says how they are kept."""
    for name in FOLDERS:
        with refuses(InputError, ValueError, name, "fm."):
            RESULTS[name].load(tmp_path / "a")
    with refuses(InputError, ValueError, "Store", "fm.open_store"):
        tiny_store.save(tmp_path / "a")


def test_another_file_is_refused(tmp_path: Path) -> None:
    path, load = tmp_path / "found.zip", fm.prompts.Attribution.load
    path.write_text("text")
    with refuses(FileError, OSError, "found.zip", "no saved Attribution"):
        load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "mine")
    with refuses(FileError, OSError, "found.zip", "result.json"):
        load(path)
    with refuses(FileError, OSError, "nothing.zip"):
        load(tmp_path / "nothing.zip")
    with refuses(FileError, OSError, "missing"):
        EIFFEL.save(tmp_path / "missing" / "found.zip")


def test_a_capture_needs_its_model(make_tiny: Callable[..., fm.Model], atlas: fm.Model, tmp_path: Path) -> None:
    """Sums with the values of another would be wrong; or with those of the model as it is when it is saved."""
    model = make_tiny()
    capture = fm.capture(model, PROMPT)
    with random_edit(model, (1,)).applied(model):
        path = capture.save(tmp_path / "capture")
        with refuses(ModelError, ValueError, capture.provenance.fingerprint, model.fingerprint):
            fm.prompts.Capture.load(path, model)
    with refuses(InputError, ValueError, str(path), model.fingerprint, "Capture.load(path, model)"):
        fm.prompts.Capture.load(path)
    with refuses(ModelError, ValueError, str(path), model.fingerprint, "atlas", atlas.fingerprint):
        fm.prompts.Capture.load(path, atlas)
    again = fm.prompts.Capture.load(path, model)
    same(again, capture)
    assert fm.attribute(again, " Paris").to_dict() == fm.attribute(capture, " Paris").to_dict()
    anatomy = fm.models.anatomy(model.hf_model.config).save(tmp_path / "anatomy")
    with refuses(InputError, ValueError, str(anatomy), "holds no Model"):
        fm.models.Anatomy.load(anatomy, model)


# -- values ----------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    layer: int
    side: Literal["key", "value"] = "key"


@dataclass(frozen=True, eq=False)
class Everything:
    """A result of all that a file holds. ``one``, ``other``: of one length."""

    one: Float[Tensor, " n"]
    other: Float[Tensor, " n"]
    any: Any = None
    place: Place | None = None
    number: float = 0.0
    names: tuple[str, int] | None = None
    provenance: Provenance | None = None


def everything(**values: Any) -> Everything:
    return Everything(**{"one": torch.ones(2), "other": torch.zeros(2), **values})


def again(value: Everything, folder: Path) -> Everything:
    return load_result(Everything, save_result(value, folder / "everything"))


FRAME = pd.DataFrame(
    {
        "float": [1.5, float("nan"), -0.0],
        "half": np.array([1, 2, 3], np.float16),
        "int": [1, 2, 3],
        "bool": [True, False, True],
        "text": ["a", "ü\n", None],
        "whole": pd.array([1, None, 3], "Int64"),
        "kind": pd.Categorical(["b", "a", None], ["b", "a", "c"], ordered=True),
        "object": pd.Series(["a", None, "c"], dtype=object),
        "a.b": ["x", "y", "z"],
    }
)
FRAME.attrs = {"provenance": {"layers": (1, 2)}, "nan": float("nan")}


@pytest.mark.parametrize(
    "value",
    [
        None,
        "half of ünïcode ✓ \n",
        10**25,
        0.1 + 0.2,
        -0.0,
        float("nan"),
        float("-inf"),
        (1, (2.0, "3"), [], ()),
        {1: "a", (2, "b"): {None: True}, "tuple": [1]},
        range(3, 9, 2),
        np.float64(0.1),
        np.float32("nan"),
        np.int16(-3),
        np.bool_(True),
        np.str_("text"),
        {"$tuple": 1, "a": {}},
        types.MappingProxyType({"a": (1,)}),
        Place(3, "value"),
        Provenance("m", "f", "float32", "cpu", True, settings=(("seed", 3), ("layers", (1, 2)))),
        torch.tensor(3.5),
        torch.zeros(0, 3, dtype=torch.float16),
        torch.tensor([1.1, float("nan"), -0.0]).bfloat16(),
        torch.tensor([True, False]),
        torch.rand(3, 4, generator=torch.Generator().manual_seed(0)).T,
        np.arange(6, dtype=np.uint8).reshape(2, 3).T,
        np.array(2.0),
        np.array([["a", "bc"]]),
        FRAME,
        FRAME.drop(columns="kind").iloc[:0],
        FRAME.set_index("text"),
        FRAME[["float"]].iloc[::-1],
        FRAME[["int"]].set_axis([4, 7, 9]),
        pd.DataFrame({"a": [True, float("nan"), "x", None], "b": [0, 1, 2, 3]}),
        Sheet.of(title="t"),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_a_value_comes_back(value: Any, tmp_path: Path) -> None:
    found = again(everything(any=value), tmp_path).any
    if isinstance(value, pd.DataFrame):
        assert isinstance(found.columns, type(value.columns))
        assert isinstance(found.index, type(value.index))
        assert list(found.dtypes) == list(value.dtypes)
    same(found, value)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        1j,
        b"bytes",
        Path("a"),
        Everything,
        pd.Timestamp(0),
        np.array([None, [1, 2], "x"], dtype=object),
        pd.DataFrame({"a": [{1}, None]}),
        pd.DataFrame([[1, 2.0]], columns=["a", "a"]),
        pd.DataFrame(np.ones((2, 2))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_no_file_holds_is_refused(value: Any, tmp_path: Path) -> None:
    """Before anything is written; and never pickled."""
    with refuses(InputError, ValueError, "any", "no file holds"):
        save_result(everything(any=value), tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_classes_are_those_of_the_annotations(tmp_path: Path) -> None:
    """A file may not name others: it would decide what is run."""

    @dataclass
    class Stranger:
        x: int = 1

    with refuses(InputError, ValueError, "Stranger"):
        save_result(everything(any=Stranger()), tmp_path / "a")


FIELDS: Callable[[dict[str, Any]], dict[str, Any]] = lambda content: content["result"]["$Everything"]  # noqa: E731
REFUSED: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("another version of ffnmem", lambda c: c.update(schema=2)),
    ("of another run", lambda c: c.update(run="other")),
    ("one", lambda c: FIELDS(c).pop("one")),
    ("strange", lambda c: FIELDS(c).update(strange=1)),
    ("holds no Everything", lambda c: c.update(result=None)),
    ("holds no Everything", lambda c: c.update(result=[c["result"]])),
    ("os.system", lambda c: FIELDS(c).update(any={"$os.system": {"command": "true"}})),
    ("Path", lambda c: FIELDS(c).update(any={"$Path": {}})),
    ("damaged", lambda c: FIELDS(c).update(any={"$frame": {"file": "arrays/one.npy", "objects": [], "attrs": {}}})),
]


@pytest.mark.parametrize(("says", "change"), REFUSED)
def test_a_file_that_does_not_fit_is_refused(
    says: str, change: Callable[[dict[str, Any]], Any], tmp_path: Path
) -> None:
    """Though its checksums are right: another program wrote it."""
    path = rewritten(save_result(everything(any=FRAME), tmp_path / "a"), change)
    with refuses(FileError, OSError, str(path), says):
        load_result(Everything, path)


def test_equal_results_are_equal_files(tmp_path: Path) -> None:
    """A time of day in the archive would make a run that is resumed end in other bytes."""
    first, second = (save_result(everything(any=FRAME), tmp_path / name).read_bytes() for name in "ab")
    assert first == second


def test_settings_are_plain_values() -> None:
    """What comes back from a file must equal what went in."""
    given = {"a": (1, np.float64(0.5)), "b": {"c": np.int64(3), "d": None}, "e": Path("x"), "f": float("inf")}
    found = plain_value(given)
    assert found == {"a": [1, 0.5], "b": {"c": 3, "d": None}, "e": "x", "f": "inf"} == plain_value(found)
    assert type(found["b"]["c"]) is int
    with refuses(InputError, ValueError, "settings.a[1]", "Tensor"):
        plain_value({"a": [0, torch.ones(2)]})
