"""Every setting of a run, validated; `config.yaml` in the run folder is one of these.

The run can be repeated from it alone. Unknown or misspelt settings are refused.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

LossName = Literal["supervised", "sure", "ne_sure", "ne_r2r", "cd", "ambient"]
DivergenceName = Literal["monte_carlo", "jvp", "exact"]
SizeName = Literal["tiny", "small", "base", "paper"]
OptimizerName = Literal["muon", "adam"]
PrecisionName = Literal["fp32", "bf16"]
KindName = Literal["edm", "standardised", "homogeneous", "uncentred", "unrolled"]
GroupName = Literal["shifts", "turns", "shifts_and_turns", "any_angle"]
OperatorName = Literal[
    "denoising", "inpainting", "demosaicing", "blur", "super_resolution", "mri", "physics"
]

MOST_CHANNELS = 10_000
"""Of an image: a network for more would not fit in any memory."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class SigmasConfig(_Strict):
    """What there is to know of sigmas.csv without reading it."""

    least: float = Field(gt=0, allow_inf_nan=False)
    """That of the cleanest image, in unit intensities; `DataConfig.sigma` is the largest."""
    fingerprint: str
    """Of all names and levels."""


class PhotonConfig(_Strict):
    """y = gain · Poisson((x − offset)/gain) + offset + N(0, read_noise²), in data units."""

    gain: float = Field(gt=0, allow_inf_nan=False)
    read_noise: float = Field(ge=0, allow_inf_nan=False)
    offset: float = Field(allow_inf_nan=False)


class SigmaConfig(_Strict):
    """How σ came to be known; all in unit intensities."""

    how: Literal["given", "estimated", "learned"]
    """By the user, from flat blocks (`--sigma auto`), or with a network (`--sigma learn`)."""
    error: float | None = Field(default=None, ge=0)
    """Its standard error, with what is not known of the images' texture."""
    unsure: float | None = None
    """√η of UNSURE's multipliers (unsure.py) …"""
    bound: float | None = None
    """… and what they tend to by the score that was learned, which σ does not exceed."""
    channels: tuple[float, ...] = ()
    """σ of each channel."""
    neighbours: tuple[float, float] | None = None
    """The correlation of the noise of neighbours across and down."""


class DataConfig(_Strict):
    """What was measured, and how its numbers become unit intensities."""

    source: str
    """The folder, glob or file the measurements came from (for the record)."""
    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    """The data's intensity range: unit = (value − low) / (high − low)."""
    range_chosen: str
    """How the range was chosen, in words."""
    axes: str | None = None
    channels: int = Field(ge=1, le=MOST_CHANNELS)
    images: int = Field(ge=1)
    fingerprint: str = ""
    """Of the images' names and sizes: on them depend the split and the simulated noise."""
    sigma: float = Field(gt=0, allow_inf_nan=False)
    """σ_n in unit intensities: of all images, or the largest where ``sigmas`` says so."""
    sigma_known: SigmaConfig | None = None
    """How that came to be known; None for runs of older versions."""
    sigmas: SigmasConfig | None = None
    """Each image has a noise level of its own; they are in sigmas.csv."""
    photons: PhotonConfig | None = None
    """The noise depends on the signal, and unit intensities are stabilised (data/stabilise.py):
    unit = (f(value) − f(low)) / (f(high) − f(low)), in which the noise is σ_n."""
    simulate: float | None = None
    """The images were clean and noise of this level (or ``sigmas``, or ``photons``) was added
    once …"""
    simulate_seed: int = 0
    """… from this seed."""


class OperatorConfig(_Strict):
    """What the instrument measures; its mask or kernel is in operator.safetensors."""

    kind: OperatorName = "denoising"
    raw: bool = False
    """Mosaics of one channel."""
    periodic: bool = False
    """The mask repeats over images of any size."""
    stride: int = Field(default=1, ge=1, le=64)
    """Of a blur: every so many values are kept (super-resolution)."""
    image_shape: tuple[int, int, int] | None = None
    """Only for a deepinv physics."""
    coloured: bool = False
    """The noise is correlated; its spectrum is in operator.safetensors too."""


class NetworkConfig(_Strict):
    """Which denoiser; see networks/."""

    size: SizeName = "small"
    kind: KindName = "edm"
    channels: int = Field(ge=1, le=MOST_CHANNELS)
    sigma_data: float = Field(gt=0, allow_inf_nan=False)
    """Standard deviation of the clean images about their means, for the preconditioning."""
    guides: int = Field(default=0, ge=0, le=MOST_CHANNELS)
    """Channels that show the network what is measured (a mask)."""
    measured: bool = False
    """Whether it must fill in what the operator does not see (A ≠ I)."""
    resolution: int = Field(default=64, ge=8, le=4096)
    """Only for `paper`, whose attention layers depend on it."""

    @property
    def fill_error(self) -> float:
        """How far off a first guess of what was not measured may be."""
        return 0.25 * self.sigma_data

    @model_validator(mode="after")
    def _fits_together(self) -> NetworkConfig:
        if self.size == "paper" and self.kind in ("homogeneous", "unrolled"):
            raise ValueError(f"the paper's network has no {self.kind} form")
        if self.measured and self.kind in ("homogeneous", "standardised", "uncentred"):
            raise ValueError(f"a {self.kind} network is for denoising only")
        return self


class RecipeConfig(_Strict):
    """What the training minimises; see recipes.py and METHOD.md §2."""

    name: str
    loss: LossName
    divergence: DivergenceName = "monte_carlo"
    weighted: bool = True
    """Divide each image's loss by its squared noise level."""
    pool: tuple[int, ...] = (1,)
    pool_weights: tuple[float, ...] = (1.0,)
    pool_until: float = Field(default=1.0, ge=0, le=1)
    """Once this share of the steps is done, nothing is pooled any more: coarse images teach much
    early on, and later take from a small network what it needs for the fine ones."""
    alpha_min: float = Field(default=0.01, gt=0, le=1)
    mu_max: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """The offset μ is drawn from U(0, this)."""
    tau: float = Field(default=0.5, gt=0)
    """Recorruption strength of `ne_r2r`: the least one when `matched`."""
    matched: bool = False
    """`ne_r2r` only: draw the level first and use the most contrast that reaches it."""
    hide: float = Field(default=0.0, ge=0, lt=1)
    """With a mask, hide measured pixels from the network, to predict them: with `ne_r2r` up to
    this share (drawn for each image), with `ambient` each pixel with this probability."""
    sigma_max_ratio: float = Field(default=1.5, gt=1, allow_inf_nan=False)
    """`cd` only: the largest level it learns from noisy targets is σ_max = σ_n × this …"""
    consistency: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    """… and this the weight of its consistency term, which is all it has below σ_n …"""
    consistency_share: float = Field(default=0.125, gt=0, le=1)
    """… computed for this share of the images only, because a sampler runs inside it."""
    ei: float = Field(default=0.0, ge=0)
    """Weight of the equivariance term …"""
    ei_at_sigma: bool = False
    """… at σ_n only, as in the EI baseline, instead of a drawn level."""
    group: GroupName | None = None
    """The invariance it uses; None for that of the operator."""
    rehearse: float = Field(default=0.0, ge=0, lt=1)
    """This share of each batch are posterior samples of the network itself, used as clean
    images (training/rehearsal.py) …"""
    rehearse_from: float = Field(default=0.5, gt=0, lt=1)
    """… once this share of the steps is done …"""
    rehearse_rounds: int = Field(default=1, ge=1, le=1000)
    """… and drawn anew so many times in all, at equal distances."""
    doubt: bool = False
    """Correlated noise only: it was estimated, and may be another. So what is rehearsed with are
    restored images, and noise about that which was estimated (operators/doubtful.py)."""

    @model_validator(mode="after")
    def _pool_fits(self) -> RecipeConfig:
        fits = len(self.pool) == len(self.pool_weights) and min(self.pool, default=0) >= 1
        if not fits or min(self.pool_weights) <= 0:
            raise ValueError("pool needs one positive weight for each factor ≥ 1")
        return self

    @model_validator(mode="after")
    def _ambient_fits(self) -> RecipeConfig:
        if self.loss == "ambient" and not (self.hide > 0 and self.pool == (1,)):
            raise ValueError("the ambient loss must hide some pixels and pool none")
        return self

    @property
    def unpooled(self) -> RecipeConfig:
        """The same without pooling."""
        return self.model_copy(update={"pool": (1,), "pool_weights": (1.0,)})

    @property
    def needs_clean(self) -> bool:
        """Whether it trains on what only simulated measurements have: no noise, or no gaps."""
        return self.loss in ("supervised", "ambient")


class TrainingConfig(_Strict):
    """The optimisation."""

    steps: int = Field(gt=0, le=10**9)
    """Fixed for the whole run, also when the budget was given in minutes."""
    minutes: float | None = None
    """The budget the steps were worked out from, if it was given in minutes."""
    batch: int = Field(default=16, ge=1, le=10**6)
    crop: int = Field(default=40, ge=8, le=10**5)
    optimizer: OptimizerName = "muon"
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """Of Adam; Muon's kernels learn at ten times this."""
    warmup: int = Field(default=50, ge=0)
    ema: float = Field(default=0.998, ge=0, lt=1)
    clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    seed: int = 0
    validate_every: int = Field(default=250, ge=1)
    precision: PrecisionName = "fp32"
    """Of the convolutions of a training step; weights, sums and all that is measured are fp32."""
    compiled: bool = False
    """Whether the network is compiled by torch.compile for the steps."""


class RunConfig(_Strict):
    """The whole run."""

    version: str
    data: DataConfig
    operator: OperatorConfig = OperatorConfig()
    network: NetworkConfig
    recipe: RecipeConfig
    training: TrainingConfig

    @model_validator(mode="after")
    def _precise_enough(self) -> RunConfig:
        divergence = self.recipe.loss in ("sure", "ne_sure") and self.recipe.divergence
        if self.training.precision == "bf16" and divergence == "monte_carlo":
            raise ValueError(
                f"the loss {self.recipe.loss} takes the difference of two answers that are nearly "
                "equal, which bf16 cannot tell apart; train with --precision fp32"
            )
        return self
