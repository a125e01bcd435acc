"""Hostile and broken input at every public door: an error of our own in one line, or success; never anything else.

``make test`` draws a few inputs for each test, the same every time; ``make fuzz`` draws others for as long as told.
"""
