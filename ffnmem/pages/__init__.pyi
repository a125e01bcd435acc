from .comparisons import comparison as comparison
from .neuron_site import site as site
from .results import page as page
