"""What result classes declare of themselves is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

import ffnmem
from ffnmem.cli.commands import Output
from ffnmem.core.json_values import plain
from ffnmem.core.provenance import Provenance
from ffnmem.core.sheets import Table
from ffnmem.show.result import Result


def subclasses(kind: type) -> list[type]:
    """All classes below one."""
    return [one for below in kind.__subclasses__() for one in (below, *subclasses(below))]


def every_class() -> list[type]:
    """The result classes of all subpackages."""
    for module in walk_packages(ffnmem.__path__, "ffnmem."):
        if not module.name.startswith(("ffnmem.cli", "ffnmem.explorer", "ffnmem.__main__")):
            import_module(module.name)
    return [one for one in dict.fromkeys(subclasses(Result)) if one.__module__.startswith("ffnmem.")]


def test_every_declared_name_is_an_attribute() -> None:
    """A name that nothing has would fail where a user asks for JSON, or prints the result."""
    for kind in every_class():
        own = {field.name for field in fields(kind)} if is_dataclass(kind) else set()
        declared: Any = kind
        tables = declared.tables if isinstance(declared.tables, Mapping) else {}
        names = f"{declared.main} {declared.uncut} {declared.only_data} {declared.in_full}".split()
        names += [name for name in tables if not hasattr(kind, f"shown_{name}")]
        names += [*(declared.heading.split() if tables and isinstance(declared.heading, str) else ())]
        known = own | set(dir(kind)) | {name for base in kind.__mro__ for name in getattr(base, "__annotations__", ())}
        tops = {declared.main} if hasattr(kind, "top") or "first_rows" in vars(kind) else set()
        assert not set(names) - known - tops, kind.__name__


@dataclass(frozen=True, repr=False)
class Made(Result):
    """A result of the tests."""

    heading = "target logit share none"
    tables: ClassVar = {"neurons": "layer share"}
    only_data = "array"

    target: str
    logit: float
    share: float
    neurons: pd.DataFrame
    array: np.ndarray
    provenance: Provenance
    none: None = None


def test_a_result_is_what_it_declares() -> None:
    frame = pd.DataFrame({"layer": range(30), "share": [float("nan"), *range(29)]})
    provenance = Provenance("atlas", "f", "float32", "cpu").with_settings(soft_cap=30.0)
    made = Made(" Paris", 1.25, 0.5, frame, np.array([1.0, np.inf]), provenance)
    assert repr(made) == "Made(target ' Paris', logit 1.25, share 0.5)"
    assert made.to_frame() is not frame
    assert len(made.to_frame()) == 30
    whole = made.to_dict()
    assert list(whole) == ["target", "logit", "share", "none", "neurons", "array", "provenance"]
    assert whole["neurons"][0] == {"layer": 0, "share": None}
    assert whole["array"] == [1.0, None]
    assert whole["provenance"]["model"] == "atlas"
    assert len(made.to_dict(20)["neurons"]) == 20
    assert [type(block).__name__ for block in made.sheet().blocks] == ["Facts", "Table", "Origin"]
    assert list(made.sheet().blocks[0].rows) == ["target", "logit", "share"]  # type: ignore[union-attr]


@dataclass(frozen=True, repr=False)
class Tables(Result):
    """One table that is all there, one of which the first rows are asked for, one by the side."""

    tables: ClassVar = {"shares": "share size", "sizes": "size"}
    in_full = "shares"

    @property
    def shares(self) -> pd.DataFrame:
        return pd.DataFrame({"share": [0.5, 1.0] * 15, "size": [0.25, 3.0] * 15})

    @property
    def count(self) -> int:
        return 30

    @property
    def shown_sizes(self) -> pd.DataFrame:
        return pd.DataFrame({"size": [3, 1] * 12})

    sizes = shown_sizes


def test_a_name_is_read_by_what_its_column_holds() -> None:
    """A size is a count in one table, and a singular value in another."""
    shares, sizes = (block for block in Tables().sheet(2).blocks if isinstance(block, Table))
    assert [column.kind for table in (shares, sizes) for column in table.columns] == [
        "percent",
        "number",
        "count",
    ]
    assert sizes.caption == "22 more", "what is counted is the rows of tables of which first ones are asked for"


def test_data_without_some_rows_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Of every table of JSON, of the main one in CSV."""
    for output, said in (
        (Output(json=True), "20 of 24 rows of sizes: --full gives all"),
        (Output(json=True, full=True), ""),
        (Output(csv=True), ""),
    ):
        output.emit(Tables())
        printed = capsys.readouterr()
        assert (said in printed.err) if said else not printed.err


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (range(2, 5), [2, 5]),
        (pd.NA, None),
        (np.float32("nan"), None),
        ({1: (np.int64(2), True)}, {"1": [2, True]}),
        (pd.DataFrame({"a": [1.5, float("nan")]}), [{"a": 1.5}, {"a": None}]),
    ],
)
def test_anything_is_plain_and_finite(value: Any, shown: Any) -> None:
    assert plain(value) == shown


def test_what_has_no_place_in_json_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no place"):
        plain(object())
