from .answers import ask_model as ask_model
from .describing import Descriptions as Descriptions
from .describing import describe as describe
