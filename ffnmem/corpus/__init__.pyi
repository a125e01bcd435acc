from .packed import Packed as Packed
from .packed import open_packed as open_packed
from .packing import pack as pack
from .readers import Document as Document
from .readers import Problem as Problem
from .sources import Corpus as Corpus
from .sources import open_corpus as open_corpus
