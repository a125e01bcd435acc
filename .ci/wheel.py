"""Build the wheel and use it away from the checkout: is everything in it that an installation needs?"""

from __future__ import annotations

import os
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
USE = """
import ffnmem as fm
model = fm.load("atlas")
capture = fm.capture(model, "The Eiffel Tower is located in the city of")
assert capture.predictions(k=1)["token"][0] == " Paris", capture.predictions(k=3)
fm.report(model, "The Eiffel Tower is located in the city of", out="report.html")
assert len(fm.load_facts("atlas")) > 2400
from ffnmem.editing.moments import load_second_moment
assert load_second_moment(None, model).condition(0) > 1
from ffnmem.corpus import pack
assert pack("atlas", model, "packed").n_tokens > 200_000
print(fm.__file__)
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*build, "--wheel-dir", folder, str(ROOT)], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            missing = sorted(set(NEEDED) - set(archive.namelist()))
            archive.extractall(Path(folder) / "site")
        if missing:
            print(f"{wheel.name} lacks {', '.join(missing)}")
            return 1
        environment = {**os.environ, "PYTHONPATH": str(Path(folder) / "site"), "HF_HUB_OFFLINE": "1"}
        used = subprocess.run(
            [sys.executable, "-c", USE], cwd=folder, env=environment, check=True, capture_output=True, text=True
        )
        if not used.stdout.strip().startswith(folder):
            print(f"the wheel was not what was imported: {used.stdout}")
            return 1
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, works away from the checkout")
        return 0


if __name__ == "__main__":
    sys.exit(main())
