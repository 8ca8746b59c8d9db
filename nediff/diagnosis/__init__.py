"""A look at noisy images before training: their noise, what they assume, what to expect."""

from __future__ import annotations

from nediff.diagnosis.advice import Advice
from nediff.diagnosis.diagnose import Diagnosis, diagnose

__all__ = ["Advice", "Diagnosis", "diagnose"]
