"""``python -m ffnmem``: the command line."""

from .cli import main

main()
