"""Hostile and broken input at every public door: an error of our own in one line, or success; never anything else.

A part of this suite is a function with ``@hostile``: what it draws, and what it does with it. ``make test`` tries a few
draws of each, the same every time; ``make fuzz`` draws others for as long as told (:mod:`tests.hostile.fuzz`).
"""
