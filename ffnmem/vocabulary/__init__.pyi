from .lenses import JacobianLens as JacobianLens
from .lenses import jacobian_lens as jacobian_lens
from .lenses import load_lens as load_lens
from .nulls import projection_null as projection_null
from .projections import project as project
from .projections import promoters as promoters
from .projections import read_projection as read_projection
from .projections import search_projection as search_projection
