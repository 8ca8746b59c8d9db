"""Training: batches, the loop, its state on disk, and validation without clean data."""

from nediff.training.fitting import fit
from nediff.training.loop import Observer, Trainer

__all__ = ["Observer", "Trainer", "fit"]
