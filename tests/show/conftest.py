from ..pages.conftest import browser

__all__ = ["browser"]
