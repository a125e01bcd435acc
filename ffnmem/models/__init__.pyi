from .fetching import get as get
from .loading import load as load
from .model import Model as Model
from .parameters import Anatomy as Anatomy
from .parameters import anatomy as anatomy
