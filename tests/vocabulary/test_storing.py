"""Projections on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.vocabulary.projections import METADATA, read_projection, write_projection

from ..helpers import refuses


@pytest.fixture(scope="module")
def file(tiny: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fm.project(tiny, k=3, out=tmp_path_factory.mktemp("projection") / "values.parquet")


def test_round_trip(tiny: fm.Model, file: Path) -> None:
    """The file would say otherwise than the table."""
    table = fm.project(tiny, k=3)
    pd.testing.assert_frame_equal(pd.read_parquet(file), table, check_categorical=False)
    found = read_projection(file)
    assert found["token"].tolist() == table["token"].tolist()
    assert found["score"].tolist() == table["score"].tolist()
    assert found.attrs == table.attrs


def test_float64_scores_stay(tiny_hf: object, tokenizer: object, tmp_path: Path) -> None:
    model = fm.load(tiny_hf, tokenizer=tokenizer, dtype="float64")  # type: ignore[arg-type]
    out = fm.project(model, k=2, out=tmp_path / "values.parquet")
    assert pq.read_schema(out).field("score").type == pa.float64()
    assert read_projection(out)["score"].tolist() == fm.project(model, k=2)["score"].tolist()


def test_one_neuron_or_layer(tiny: fm.Model, file: Path) -> None:
    """Another neuron's rows, or none, from a wrong row group."""
    for layer, neuron in ((0, 0), (1, 63)):
        found = read_projection(file, layer, neuron)
        pd.testing.assert_frame_equal(found, fm.project(tiny, layer, neuron, k=3))
    assert len(read_projection(file, 1)) == 64 * 12
    assert read_projection(file, neuron=5)["layer"].unique().tolist() == [0, 1]
    assert read_projection(file, 2, 0).empty


def test_what_the_file_says_about_itself(tiny: fm.Model, file: Path) -> None:
    """A file without its basis and model cannot be compared with another."""
    about = json.loads(pq.read_schema(file).metadata[METADATA])
    assert about["k"] == 3
    assert about["sides"] == ["value", "key"]
    assert about["provenance"] == tiny.provenance(basis="folded", lens="logit").to_dict()


def test_ids_that_share_a_text(tiny: fm.Model) -> None:
    """Bytes that are no character all show as �: one text, but not one id."""
    table = fm.project(tiny, 0, 0, k=tiny.d_vocab)
    texts = tiny.token_strings(range(tiny.d_vocab))
    assert len(set(texts)) < len(texts)
    assert table["token"].tolist() == [texts[index] for index in table["token_id"]]


def test_a_failure_leaves_the_older_file(tiny: fm.Model, tmp_path: Path) -> None:
    """Half a file would look like a whole one."""
    out = fm.project(tiny, 0, [1], k=2, out=tmp_path / "values.parquet")
    before = out.read_bytes()

    def fails() -> Iterator[pa.Table]:
        yield pq.read_table(out)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_projection(out, fails(), {})
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


def test_files_that_are_none(tiny: fm.Model, file: Path, tmp_path: Path) -> None:
    """One line that names the file, whatever is wrong with it."""
    other, text, cut, bent, newer = (tmp_path / f"{name}.parquet" for name in ("other", "text", "cut", "bent", "newer"))
    pq.write_table(pa.table({"token": ["a"]}), other)
    text.write_text("no Parquet")
    whole = file.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    bent.write_bytes(whole[:400] + bytes([whole[400] ^ 255]) + whole[401:])
    table = pq.read_table(file)
    pq.write_table(table.replace_schema_metadata({METADATA: json.dumps({"schema": 99})}), newer)
    with refuses(FileError, OSError, "no folder"):
        fm.project(tiny, out=tmp_path / "none" / "values.parquet")
    for path, named in (
        (tmp_path / "none.parquet", "there is no file"),
        (other, "is no projection"),
        (text, "Parquet magic bytes not found"),
        (cut, "truncated"),
        (bent, "damaged"),
        (newer, "schema 99"),
    ):
        with refuses(FileError, OSError, str(path), named):
            read_projection(path)
        with refuses(FileError, OSError, str(path), named):
            fm.vocabulary.search_projection(path, "a")
