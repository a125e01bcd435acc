from .running import run as run
from .study import STUDIES as STUDIES
from .study import Figure as Figure
from .study import Study as Study
from .study import StudyTable as StudyTable
