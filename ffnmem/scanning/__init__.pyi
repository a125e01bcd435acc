from .exporting import export_store as export_store
from .merging import merge as merge
from .scanning import scan as scan
from .store import Store as Store
from .store import open_store as open_store
