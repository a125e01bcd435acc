from .calibrating import Calibration as Calibration
from .calibrating import calibrate as calibrate
from .chains import plant_chains as plant_chains
from .planting import Planted as Planted
from .planting import load_planted as load_planted
from .planting import plant as plant
