from . import (
    comparing as comparing,
)
from . import (
    concepts as concepts,
)
from . import (
    corpus as corpus,
)
from . import (
    describing as describing,
)
from . import (
    editing as editing,
)
from . import (
    evaluation as evaluation,
)
from . import (
    explorer as explorer,
)
from . import (
    facts as facts,
)
from . import (
    ffn as ffn,
)
from . import (
    interventions as interventions,
)
from . import (
    models as models,
)
from . import (
    neurons as neurons,
)
from . import (
    pages as pages,
)
from . import (
    plots as plots,
)
from . import (
    prompts as prompts,
)
from . import (
    scanning as scanning,
)
from . import (
    tracing as tracing,
)
from . import (
    vocabulary as vocabulary,
)
from ._version import __version__ as __version__
from .comparing.comparing import compare as compare
from .concepts.finding import concept as concept
from .concepts.steering import steer as steer
from .core.errors import FfnmemError as FfnmemError
from .core.errors import FfnmemWarning as FfnmemWarning
from .core.errors import InputError as InputError
from .describing.describing import describe as describe
from .editing.edit import Edit as Edit
from .editing.rank_one import rome as rome
from .evaluation.evaluating import evaluate as evaluate
from .facts.fact import Fact as Fact
from .facts.formats import load_facts as load_facts
from .interventions.ablating import ablate as ablate
from .interventions.contrasts import contrast as contrast
from .interventions.contrasts import patch as patch
from .interventions.intervening import intervene as intervene
from .models.loading import load as load
from .models.model import Model as Model
from .neurons.concepts import meanings as meanings
from .neurons.role_assignment import roles as roles
from .neurons.survey import polysemanticity as polysemanticity
from .neurons.wiring import virtual_weights as virtual_weights
from .prompts.attribution import attribute as attribute
from .prompts.attribution import decompose as decompose
from .prompts.captures import capture as capture
from .prompts.causal import causal_scores as causal_scores
from .prompts.circuits import circuit as circuit
from .prompts.minimal import minimal_circuit as minimal_circuit
from .prompts.paths import attribute_paths as attribute_paths
from .prompts.reporting import report as report
from .prompts.sufficiency import faithfulness as faithfulness
from .scanning.merging import merge as merge
from .scanning.scanning import scan as scan
from .scanning.store import open_store as open_store
from .tracing.blocking import knockout as knockout
from .tracing.tracing import trace_fact as trace_fact
from .vocabulary.projections import project as project
