"""The same experiments at three scales: seconds (tests), hours of two cores, GPUs (the paper)."""

from __future__ import annotations

from dataclasses import dataclass, field

from nediff.config import OptimizerName, SizeName
from nediff.errors import NediffError

SETS = ("ffhq", "nbu", "afhq")
"""The image sets of the paper, by the names its tables use."""


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    name: str
    side: int
    """Of the images, for denoising."""
    operator_side: int
    """Of the images, for inpainting and demosaicing."""
    size: SizeName
    batch: int
    crop: int
    folders: dict[str, str]
    """Where in the data folder each set is; empty for pictures that come with scikit-image."""
    train: int | None
    """Images to train on; None for all there are."""
    validation: dict[str, int]
    """Images that everything is judged on."""
    minutes: float
    """Of one core (or GPU), for each training: only to plan with."""
    steps: dict[str, int]
    """Training steps of each method, for denoising."""
    operator_steps: dict[str, dict[str, int]]
    """The same for inpainting and for demosaicing …"""
    operator_minutes: dict[str, float]
    """… which are to take so long each."""
    counts: tuple[int | None, ...]
    """Numbers of training images of the sample-complexity figure; None for all …"""
    count_steps: int
    """… with so many steps each."""
    ablation_steps: dict[str, int] = field(default_factory=dict)
    """Training steps of the ablations, by the method they change."""
    calibrated: int = 32
    """Images on which several samples each are drawn, for calibration."""
    optimizer: OptimizerName = "muon"
    learning_rate: float = 1e-3
    """The largest, of every run, however short: ablations are compared with long ones."""
    warmup: int = 50
    """Steps in which the learning rate grows, a fifth of the run at most."""
    keeps: tuple[str, ...] = ()
    """The models whose weights are kept with the results, so that anyone can run them again."""

    def judging(self, images: str, side: int) -> float:
        """How many pixels a network is judged on, over those of the `cpu` scale: for the plan."""
        return self.validation[images] * side**2 / (400 * 64**2)


def _equal_minutes(supervised: int) -> dict[str, int]:
    """Steps of each method that take as long as so many supervised ones.

    By the processor time of a step of the `cpu` scale, measured side by side with `Pace`:
    0.177 s supervised, 0.230 default, 0.306 paper, 0.290 sure. CD in a later run, in which the same
    took 0.238, 0.281, 0.390 and 0.375 s: 0.436 s.
    """
    cost = {"supervised": 1.0, "default": 1.3, "paper": 1.73, "sure": 1.64, "cd": 1.83}
    return {method: max(2, round(supervised / c)) for method, c in cost.items()}


OPERATORS = ("inpainting", "demosaicing")


TINY = Scale(
    name="tiny",
    side=32,
    operator_side=32,
    size="tiny",
    batch=2,
    crop=16,
    folders={},
    train=8,
    validation=dict.fromkeys(SETS, 3),
    minutes=0.005,
    steps=_equal_minutes(6),
    operator_steps={p: {"ei": 2, "paper": 2, "default": 4, "ambient": 3} for p in OPERATORS},
    operator_minutes=dict.fromkeys(OPERATORS, 0.01),
    counts=(2, 4, None),
    count_steps=3,
    ablation_steps={"paper": 2, "sure": 2, "default": 3},
    calibrated=2,
    keeps=("afhq-0.075-default", "inpainting-afhq-0.075-default"),
)
CPU = Scale(
    name="cpu",
    side=64,
    operator_side=64,
    size="small",
    batch=16,
    crop=40,
    folders={"ffhq": "faces64", "nbu": "aerial64", "afhq": "cats64"},
    train=None,
    validation=dict.fromkeys(SETS, 400),
    minutes=7,
    steps=_equal_minutes(2100),
    operator_steps={
        "inpainting": {"ei": 2610, "paper": 2590, "default": 7200, "ambient": 8500},
        "demosaicing": {"ei": 590, "paper": 590, "default": 1660, "ambient": 2030},
    },
    operator_minutes={"inpainting": 30, "demosaicing": 8},
    counts=(10, 30, 100, 300, 1000, None),
    count_steps=1800,
    ablation_steps={"paper": 350, "sure": 350, "default": 500},
    keeps=(
        "afhq-0.075-default",
        "inpainting-afhq-0.075-default",
        "demosaicing-afhq-0.075-default",
    ),
)
PAPER = Scale(
    name="paper",
    side=128,
    operator_side=64,
    size="paper",
    batch=64,
    crop=128,
    folders={name: name for name in SETS},
    train=15000,
    validation={"ffhq": 1000, "afhq": 1500, "nbu": 1800},
    minutes=24 * 60,
    steps=dict.fromkeys(("supervised", "default", "paper", "sure", "cd"), 200_000),
    operator_steps={
        p: dict.fromkeys(("ei", "paper", "default", "ambient"), 200_000) for p in OPERATORS
    },
    operator_minutes=dict.fromkeys(OPERATORS, 24 * 60),
    counts=(500, 1000, 5000, None),
    count_steps=200_000,
    ablation_steps=dict.fromkeys(("paper", "sure", "default"), 50_000),
    # The paper states neither. That of EDM for FFHQ and AFHQ at 64², a fifth of ours for small
    # networks, and a slow start; not tried by us.
    optimizer="adam",
    learning_rate=2e-4,
    warmup=5000,
)
SCALES = {scale.name: scale for scale in (TINY, CPU, PAPER)}


def scale_named(name: str) -> Scale:
    """A scale, or a sentence that lists them."""
    if name not in SCALES:
        raise NediffError(f"There is no scale '{name}'; there are: {', '.join(SCALES)}.")
    return SCALES[name]
