"""The manual: ``python docs/build.py`` writes it into out/docs, and fails at any warning.

Every page is a Markdown file of the repository with links that work where the file lies. They are gathered in
out/manual under the names that :func:`sources` gives them, with their links made to fit; the notebooks become tutorials
with the outputs that they were saved with, and the public names become the pages of the API. MkDocs does the rest.
"""

from __future__ import annotations

import base64
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import docstrings
import griffe
import nbformat

from ffnmem.cli import run_captured
from ffnmem.cli.table import GROUPS

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / "out" / "manual"
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "data/atlas/README.md": "guide/atlas-card.md",
    "data/corpus/README.md": "guide/atlas-corpus.md",
    "LICENSE": "LICENSE.txt",
    "CITATION.cff": "CITATION.cff",
}
FENCED = re.compile(r"^(```+).*?^\1$", re.M | re.S)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")

# The pages of the API, in their order: one page for each subpackage, and the errors of core.
TITLES = {
    "models": "Models",
    "prompts": "Prompts",
    "vocabulary": "Vocabulary",
    "interventions": "Interventions",
    "corpus": "Corpora",
    "scanning": "Scans and stores",
    "neurons": "Neurons",
    "concepts": "Concepts",
    "describing": "Descriptions",
    "facts": "Facts",
    "tracing": "Causal tracing",
    "editing": "Editing",
    "evaluation": "Evaluation of edits",
    "comparing": "Two models compared",
    "ffn": "The FFN in plain tensors",
    "plots": "Figures",
    "pages": "Pages",
    "explorer": "The explorer",
    "core": "Errors",
}


class ManualError(Exception):
    """The manual cannot be built as the repository stands."""


def sources() -> dict[str, str]:
    """Every file of the manual, as the repository has it and as the manual has it."""
    inside = {
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix()
        for path in sorted((ROOT / "docs").rglob("*"))
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    notebooks = {f"notebooks/{path.name}": f"tutorials/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")}
    return {**OUTSIDE, **inside, **notebooks}


def with_links(text: str, source: str, pages: Mapping[str, str]) -> str:
    """A page whose relative links lead where its neighbours are in the manual; raises ManualError if one is in none."""

    def moved(found: re.Match[str]) -> str:
        target, mark, anchor = found[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if file not in pages:
            raise ManualError(f"{source} links to {target}, which is no page of the manual")
        start = posixpath.dirname(pages[source])
        return f"{found[1]}{posixpath.relpath(pages[file], start or '.')}{mark}{anchor}{found[3]}"

    parts, last = [], 0
    for fence in FENCED.finditer(text):
        parts += [LINK.sub(moved, text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, LINK.sub(moved, text[last:])])


def tutorial(path: Path, folder: Path) -> str:
    """A notebook as Markdown with the outputs that it was saved with; its figures are written into the folder."""
    parts = []
    for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for place, output in enumerate(cell.outputs):
            parts.append(shown(output, folder / f"{path.stem}-{number:02d}-{place}.png"))
    return "\n\n".join(parts) + "\n"


def shown(output: nbformat.NotebookNode, figure: Path) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        figure.parent.mkdir(parents=True, exist_ok=True)
        figure.write_bytes(base64.b64decode(data["image/png"]))
        return f"![]({figure.name})"
    if "text/html" in data:
        return f'<div class="output">\n{data["text/html"].strip()}\n</div>'
    text = output.get("text") or data.get("text/plain", "")
    return f"```text\n{text.rstrip()}\n```"


def public_names() -> Iterator[tuple[str, str]]:
    """The page and the path of every public name: first those of the package, then those of its subpackages."""
    package = griffe.load("ffnmem", search_paths=[str(ROOT)], resolve_aliases=True, resolve_implicit=True)
    seen = set()
    for path, home in docstrings.public(package).items():
        if home not in seen:
            seen.add(home)
            yield page_of(home), path


def page_of(home: str) -> str:
    subpackage = home.split(".")[1]
    if subpackage not in TITLES:
        raise ManualError(
            f"{home} is public, and no page of the API shows ffnmem.{subpackage}: see TITLES in docs/build.py"
        )
    return subpackage


def api() -> dict[str, str]:
    """The pages of the API by their names."""
    names: dict[str, list[str]] = {page: [] for page in TITLES}
    for page, name in public_names():
        names[page].append(name)
    return {
        page: f"# {TITLES[page]}\n\n" + "\n".join(f"::: {name}" for name in sorted(found, key=str.lower)) + "\n"
        for page, found in names.items()
    }


def commands() -> str:
    """The page of the commands: by task, what each prints for --help."""
    parts = [
        "# Command line",
        "Every command prints a readable table; `--json` and `--csv` print data and nothing else on standard output. "
        "What goes wrong is one line on standard error. Exit status: 0; 1 where a result says that it did not reach "
        "what was asked, or the reader of a pipe went away; 2 for a mistake; 130 after Ctrl-C.",
    ]
    for title, names in GROUPS.items():
        parts.append(f"## {title}")
        for name in names:
            _, text, mistake = run_captured([name, "--help"])
            if mistake:
                raise ManualError(f"ffnmem {name} --help: {mistake}")
            parts.append(f"### ffnmem {name}\n\n```text\n{text.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def stage() -> None:
    """Gather all pages in out/manual."""
    shutil.rmtree(STAGE, ignore_errors=True)
    pages = sources()
    for source, page in pages.items():
        target = STAGE / page
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".ipynb"):
            target.write_text(
                with_links(tutorial(ROOT / source, target.parent), source, pages | figures(target)), "utf-8"
            )
        elif source.endswith(".md"):
            top = "---\nhide: [navigation]\n---\n" if page == "index.md" else ""  # the first page of its own section
            target.write_text(top + with_links((ROOT / source).read_text("utf-8"), source, pages), "utf-8")
        else:
            shutil.copyfile(ROOT / source, target)
    (STAGE / "cli.md").write_text(commands(), "utf-8")
    (STAGE / "api").mkdir(exist_ok=True)
    for name, text in api().items():
        (STAGE / "api" / f"{name}.md").write_text(text, "utf-8")


def figures(page: Path) -> dict[str, str]:
    """The figures of a tutorial, which lie beside it."""
    return {f"notebooks/{path.name}": f"tutorials/{path.name}" for path in page.parent.glob("*.png")}


def main() -> int:
    try:
        stage()
    except ManualError as error:
        print(error)
        return 1
    # The theme's note that it is maintained until May 2027; mkdocs.yml is what its successor, Zensical, reads too.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "docs"), "NO_MKDOCS_2_WARNING": "1"}
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    return subprocess.run(build, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
