"""How the tests of the command line run it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pandas as pd
from rich.cells import cell_len

import ffnmem as fm
from ffnmem import cli
from ffnmem.cli import progress

from ..editing.edits import EIFFEL, made

PROMPT = "The Eiffel Tower is in the city of"


def help_text(name: str) -> str:
    """What ``ffnmem NAME --help`` prints."""
    return cli.run_captured([name, "--help"])[1].strip()


@dataclass
class Ran:
    """What a command left: its exit status, and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str


def run(*args: object, status: int = 0, env: dict[str, str] | None = None) -> Ran:
    """Run ``ffnmem ARGS`` in this process; anything but ``status`` fails with what was printed."""
    with (
        patch.object(progress, "SILENCE", inf),  # a busy machine has nothing more to say
        patch.dict(os.environ, {"COLUMNS": "80", **(env or {})}),
    ):
        ran = Ran(*cli.run_captured([str(a) for a in args]))
    assert ran.exit_code == status, f"{ran.exit_code}: {ran.stdout}{ran.stderr}"
    return ran


def table(*args: object, width: int = 80, status: int = 0) -> str:
    """What a command prints on a terminal of ``width`` columns, which no line may exceed."""
    out = run(*args, env={"COLUMNS": str(width)}, status=status).stdout
    for line in out.splitlines():
        assert cell_len(line) <= width, f"{cell_len(line)} columns: {line!r}"
    return out


def data(*args: object, warning: str = "") -> Any:
    """The JSON of a command, which must be strict and stand alone on standard output; only warnings are said."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is no JSON")

    result = run(*args, "--json")
    notes = [
        line for line in result.stderr.splitlines() if not re.match("ffnmem: (will write about|[0-9,]+ of )", line)
    ]
    assert all(line.startswith("ffnmem: warning: ") for line in notes)
    assert bool(notes) == bool(warning)
    assert warning in result.stderr
    return json.loads(result.stdout, parse_constant=refuse)


def csv(*args: object, status: int = 0) -> pd.DataFrame:
    """The CSV of a command as a table; empty cells are empty texts where a column has texts."""
    return pd.read_csv(io.StringIO(run(*args, "--csv", status=status).stdout), keep_default_na=False, na_values=[""])


def mistake(*args: object, named: tuple[object, ...]) -> str:
    """A user's mistake: status 2, nothing on standard output, one line on standard error that names ``named``."""
    result = run(*args, status=2)
    assert result.stdout == ""
    assert result.stderr.startswith("ffnmem: error: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("\n")
    missing = [name for name in named if str(name) not in result.stderr]
    assert not missing, f"{missing} not named in: {result.stderr}"
    return result.stderr


def arguments_of(name: str) -> list[Any]:
    """The arguments and options of a command, as cyclopts has them."""
    return [one for one in cli.app[name].assemble_argument_collection(parse_docstring=True) if one.name != "*"]


def process(*args: object, **options: Any) -> subprocess.Popen[bytes]:
    """``python -m ffnmem ARGS`` as a process of its own."""
    environment = {**os.environ, "COLUMNS": "80", **options.pop("env", {})}
    command = [sys.executable, "-m", "ffnmem", *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **options)


def saved(model: fm.Model, path: Path, **more: Any) -> fm.Edit:
    """A random edit, and its file."""
    edit = made(model, fact=EIFFEL, **more)
    edit.save(path)
    return edit
