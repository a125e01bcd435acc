"""Tables as CSV: what is in a token ends no line and no field."""

from __future__ import annotations

import csv
import io
import json

import pandas as pd
import pytest

from ffnmem.show.records import csv_text, print_csv

TOKENS = ["\r", "a\rb", "\r\n", "\n", '"', ",", " x ", "="]


@pytest.mark.parametrize("token", TOKENS, ids=[json.dumps(one) for one in TOKENS])
def test_a_token_reads_back_as_it_is(token: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    frame = pd.DataFrame({"token": [token, "b"], "score": [0.1, float("nan")]})
    print_csv(list(frame.columns), frame.to_dict("records"))
    for text in (csv_text(frame), capsysbinary.readouterr().out.decode()):
        assert pd.read_csv(io.StringIO(text, newline=""), keep_default_na=False)["token"].tolist() == [token, "b"]
        assert list(csv.reader(io.StringIO(text, newline=""))) == [["token", "score"], [token, "0.1"], ["b", ""]]
