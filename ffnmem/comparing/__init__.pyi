from .comparing import compare as compare
from .comparison import Comparison as Comparison
