from .fact import Fact as Fact
from .fact import Probe as Probe
from .formats import load_facts as load_facts
from .formats import write_facts as write_facts
from .known import Known as Known
from .known import filter_known as filter_known
from .portability import with_portability as with_portability
