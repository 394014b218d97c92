"""Training loops: `Trainer`, and what listens to it."""

from treadle.trainer.callback import Callback, Checkpoint, EarlyStopping
from treadle.trainer.elastic import Elastic
from treadle.trainer.logs import CSVLogger, TensorBoardLogger
from treadle.trainer.progress import ProgressBar
from treadle.trainer.randomness import seed_everything
from treadle.trainer.trainer import Trainer

__all__ = [
    "CSVLogger",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "Elastic",
    "ProgressBar",
    "TensorBoardLogger",
    "Trainer",
    "seed_everything",
]
