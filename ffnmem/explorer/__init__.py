"""The local web page on which memories are explored. Needs ``pip install "ffnmem[explorer]"``."""
