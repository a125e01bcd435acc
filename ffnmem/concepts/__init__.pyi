from .finding import Concept as Concept
from .finding import concept as concept
from .steering import Steering as Steering
from .steering import steer as steer
