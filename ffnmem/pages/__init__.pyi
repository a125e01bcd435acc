from .neuron_site import site as site
from .results import page as page
