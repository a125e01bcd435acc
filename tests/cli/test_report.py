"""``ffnmem report``: the page, and its path on standard output."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from tests.cli.running import PROMPT, run


def test_writes_and_prints_the_path(tiny_folder: Path, tmp_path: Path) -> None:
    """The path alone, so that a shell can use it; and the options reach the page."""
    page = tmp_path / "a page.html"
    result = run("report", PROMPT, "--model", tiny_folder, "-o", page, "--target", " Paris", "--top", 3)
    assert (result.stdout, result.stderr) == (f"{page}\n", "")
    three = page.read_text("utf-8")
    assert "Paris" in three
    run("report", PROMPT, "--model", tiny_folder, "-o", page, "--target", " Paris", "--top", 4)
    assert page.read_text("utf-8") != three
    run("report", PROMPT, "--model", tiny_folder, "-o", page, "--target", " Paris", "--top", 3)
    assert page.read_text("utf-8") == three


def test_default_name(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("report", PROMPT, "--model", tiny_folder).stdout == "report.html\n"
    assert Path("report.html").is_file()


@pytest.mark.parametrize("opens", [True, False])
def test_open(opens: bool, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser gets the file's address; where there is none, the user is told, and the page is there."""
    asked: list[str] = []

    def browser(url: str) -> bool:
        asked.append(url)
        return opens

    monkeypatch.setattr(webbrowser, "open", browser)
    page = tmp_path / "page.html"
    result = run("report", PROMPT, "--model", tiny_folder, "-o", page, "--open")
    assert asked == [page.as_uri()]
    assert result.stdout == f"{page}\n"
    assert ("no browser" in result.stderr) == (not opens)
