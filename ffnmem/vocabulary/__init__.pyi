from .nulls import projection_null as projection_null
from .projections import project as project
from .projections import promoters as promoters
from .projections import read_projection as read_projection
from .projections import search_projection as search_projection
