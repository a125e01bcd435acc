"""What a command must not load: every module costs whoever asks one question of one prompt."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = (
    *("transformer_lens", "matplotlib", "sklearn", "datasets", "wandb", "scipy.stats", "ray", "ffnmem.scanning"),
    *("numba", "llvmlite", "IPython", "fsspec.implementations"),
)
CODE = """
import contextlib, io, json, sys
import ffnmem as fm
model = fm.load("atlas")
capture = fm.capture(model, "The Eiffel Tower is located in the city of", logits=True)
fm.attribute(capture, " Paris", " Rome").neurons
fm.attribute_paths(capture, " Paris").components
with fm.intervene(model, {(3, 17): 0.0}):
    fm.capture(model, "The")
print(json.dumps([name for name in sys.argv[1:] if name in sys.modules]))
model.to_bridge()
print(json.dumps("transformer_lens" in sys.modules))
"""


def test_heavy_modules_stay_out() -> None:
    """TransformerLens alone takes four seconds, for those who never asked for it."""
    found = subprocess.run([sys.executable, "-c", CODE, *HEAVY], capture_output=True, text=True, check=True)
    loaded, asked = map(json.loads, found.stdout.splitlines())
    assert loaded == []
    assert asked is True  # or the list above would be empty whatever was loaded


def test_a_whole_command() -> None:
    """With what it prints: the tokens that a few values promote are found without numba's half a second."""
    code = f"""
import json, sys
from ffnmem.cli import main
sys.argv = ["ffnmem", "attribute", "The Eiffel Tower is located in the city of", "--target", " Paris"]
try:
    main()
except SystemExit:
    print(json.dumps([name for name in {HEAVY} if name in sys.modules]), file=sys.stderr)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "promotes" in found.stdout
    assert found.stderr.splitlines()[-1] == "[]"
