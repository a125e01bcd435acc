from .attribution import NEXT as NEXT
from .attribution import Attribution as Attribution
from .attribution import attribute as attribute
from .attribution import decompose as decompose
from .captures import Capture as Capture
from .captures import capture as capture
from .paths import PathAttribution as PathAttribution
from .paths import attribute_paths as attribute_paths
