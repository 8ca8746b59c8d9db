"""How good are the estimates, and can the error bars be believed?"""

from nediff.evaluation.calibration import Calibration
from nediff.evaluation.evaluate import Evaluation, evaluate_blind, evaluate_with_truth
from nediff.evaluation.metrics import psnr, ssim

__all__ = [
    "Calibration",
    "Evaluation",
    "evaluate_blind",
    "evaluate_with_truth",
    "psnr",
    "ssim",
]
