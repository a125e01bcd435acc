from .describing import Descriptions as Descriptions
from .describing import describe as describe
from .endpoint import Endpoint as Endpoint
