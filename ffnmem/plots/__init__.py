"""matplotlib pictures of results.

Each function draws one picture: on ``ax``, or on a new figure by default, and returns the Axes. :func:`draw` draws the
first picture of any result, :func:`figure` all of them, and :func:`arrange` some on one figure. Blue adds and orange
takes wherever colour means sign. Where there is nothing to draw, and for a name that the result does not have,
:class:`ffnmem.core.errors.InputError` is raised.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
