from .lenses import JacobianLens as JacobianLens
from .lenses import jacobian_lens as jacobian_lens
from .lenses import load_lens as load_lens
from .projections import Projection as Projection
from .projections import Promoters as Promoters
from .projections import project as project
from .projections import promoters as promoters
