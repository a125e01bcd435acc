"""Build the wheel, install it with the newest or the oldest versions that it allows, and try it away from the checkout.

``python .ci/wheel.py newest|oldest [--torch REQUIREMENT] TEST …``: the README's install line in a new environment, its
Python and commands in an empty folder, then tests and the first notebook. Nothing of the checkout is imported.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (
    "ffnmem/py.typed",
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "ffnmem").rglob("*.pyi"))),
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "ffnmem").glob("*/templates/*"))),
    "ffnmem/data/atlas/config.json",
    "ffnmem/data/atlas/model.safetensors",
    "ffnmem/data/atlas/tokenizer.json",
    "ffnmem/data/atlas/facts.jsonl",
    "ffnmem/data/atlas/second_moments.safetensors",
    "ffnmem/data/atlas/README.md",
    "ffnmem/data/corpus/atlas.jsonl.gz",
    "ffnmem/data/corpus/README.md",
)
RESOLUTION = {"newest": "highest", "oldest": "lowest-direct"}
NOTEBOOK = "notebooks/01_memories_of_a_prompt.py"
TOOLS = ("beartype", "httpx2", "hypothesis", "pytest", "pytest-xdist", "python-multipart", "starlette", "uvicorn")
INSTALLED = """
from importlib.metadata import requires, version
from packaging.requirements import Requirement
import ffnmem
print(ffnmem.__file__)
for needed in map(Requirement, requires("ffnmem")):
    if needed.marker is None:
        (lowest,) = (part.version for part in needed.specifier if part.operator == ">=")
        found = version(needed.name)
        print(f"{needed.name}=={found}", "" if Requirement(f"x=={lowest}").specifier.contains(found) else lowest)
"""


def build_wheel(folder: Path) -> Path:
    """The wheel, with all that an installation needs in it."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        missing = sorted(set(NEEDED) - set(archive.namelist()))
    if missing:
        sys.exit(f"{wheel.name} lacks {', '.join(missing)}")
    return wheel


def install(folder: Path, wheel: Path, resolution: str, torch: str) -> Path:
    """The environment's Python: what the README's install line brings, in the versions asked for."""
    (wanted,) = re.findall(r"^pip install '(ffnmem\[\w+\])'", (ROOT / "README.md").read_text("utf-8"), re.M)
    python = folder / "env" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    # torch by pip, which knows where this machine gets it; without what it needs, so that all of that is chosen below.
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", torch, "uv"], check=True)
    (folder / "torch.txt").write_text(torch)
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    needed = re.findall(r"^Requires-Dist: ([^;\n]+)$", metadata, re.M)  # by name, else uv takes the newest of them
    uv = [python, "-m", "uv", "pip", "install", "--quiet", "--python", python, "--constraint", folder / "torch.txt"]
    subprocess.run([*uv, "--resolution", resolution, f"{wanted} @ {wheel.as_uri()}", *needed], check=True)
    return python


def check_versions(python: Path, folder: Path, which: str) -> None:
    """The wheel is what is imported; and of the oldest versions, each stands in pyproject.toml as the lower bound."""
    found = subprocess.run([python, "-c", INSTALLED], cwd=folder, check=True, capture_output=True, text=True)
    where, *versions = found.stdout.splitlines()
    print(f"{which}:", *(line.partition(" ")[0] for line in versions))
    if not Path(where).is_relative_to(folder / "env"):
        sys.exit(f"the wheel was not what was imported: {where}")
    for line in versions if which == "oldest" else ():
        pinned, _, bound = line.partition(" ")
        if bound:
            sys.exit(f">={bound} in pyproject.toml, and the oldest that can be installed is {pinned}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=RESOLUTION)
    parser.add_argument("--torch", default="torch")
    parser.add_argument("tests", nargs="+", metavar="TEST")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        wheel = build_wheel(folder)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        python = install(folder, wheel, RESOLUTION[options.which], options.torch)
        check_versions(python, folder, options.which)
        away = folder / "away"
        for path in ("README.md", "pyproject.toml", "docs/outputs.py", NOTEBOOK):
            (away / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, away / path)
        shutil.copytree(ROOT / "tests", away / "tests")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::FutureWarning"}

        def run(*arguments: str | Path) -> None:
            subprocess.run([python, *arguments], cwd=away, env=environment, check=True)

        run("docs/outputs.py", "--check", "README.md")  # before the tools of the tests are there
        run("-m", "uv", "pip", "install", "--quiet", "--python", python, "-c", folder / "torch.txt", *TOOLS)
        # Old libraries use what newer ones they need have deprecated; nobody sees that.
        run("-m", "pytest", "-q", "-n", "auto", "--maxprocesses", "4", "--dist", "worksteal",
            *(("-W", "default::DeprecationWarning") if options.which == "oldest" else ()), *options.tests)  # fmt: skip
        run(NOTEBOOK)
    return 0


if __name__ == "__main__":
    sys.exit(main())
