"""The Restorer: what a user keeps of a training run, and uses."""

from __future__ import annotations

import itertools
import operator
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from nediff.config import RunConfig
from nediff.correction import Correction, load_correction, save_correction
from nediff.data import IntensityRange
from nediff.divergence import Map, expand
from nediff.errors import NediffError
from nediff.finish import Finish
from nediff.networks import Denoiser, build_denoiser
from nediff.problem import Problem
from nediff.runs import (
    load_config,
    load_problem,
    load_weights,
    range_of,
    save_config,
    save_problem,
    save_weights,
)
from nediff.sampling import SamplerSettings, sample_posterior
from nediff.sampling.posterior import Progress
from nediff.sampling.solvers import network_calls
from nediff.tiling import (
    CanvasMaker,
    Journal,
    LargeImage,
    Reader,
    Tile,
    TiledDenoiser,
    in_memory,
    restored_in_memory,
    sampled_in_memory,
    tiles_of,
)
from nediff.unmeasured import UnmeasuredSpread, load_spread, save_spread

if TYPE_CHECKING:
    from nediff.interop import RestorerDenoiser, RestorerReconstructor

Array = TypeVar("Array", Tensor, NDArray[np.float32])

TILED_FROM, TILE = 2**20, 768
NOT_LOCAL = 64
"""The margin around a tile for networks that look at the whole image, where no margin would do."""

MOST_NOISE = 2.0
"""Images may be so many times as noisy as the noisiest of the training: to restore them their
contrast is reduced by as much. A bound of caution: at σ_n the default recipe shows the network
contrasts down to 1/√2, and what it makes of lower ones was not measured."""


@dataclass(frozen=True)
class Posterior(Generic[Array]):
    """What n samples say of each pixel; all shaped like the measurement."""

    mean: Array
    sd: Array
    """Unbiased standard deviation of the samples."""
    lower: Array
    upper: Array
    """The interval from the second lowest to the second highest sample (from the lowest to
    the highest if there are fewer than four), stretched about the mean where ``conformal``."""
    coverage: float
    """The share of true values that interval should hold: (n + 1 − 2k)/(n + 1)."""
    conformal: bool = False
    """Whether that was made sure of with clean images (`nediff calibrate --clean`)."""


def left_out(n: int) -> int:
    """The interval of n samples goes from the k-th lowest to the k-th highest: k."""
    return 2 if n >= 4 else 1


def promised_coverage(n: int) -> float:
    """How likely the truth, just one more sample if all is right, is in the interval of n."""
    return (n + 1 - 2 * left_out(n)) / (n + 1)


class Restorer:
    """problem + denoiser + how it was trained.

    Images go in and come out as NumPy arrays or tensors of shape (H, W), (C, H, W) or
    (B, C, H, W) in unit intensities, which is what `Measurements` gives; ``range`` converts
    to and from the data's own units.
    """

    def __init__(
        self,
        problem: Problem,
        denoiser: Denoiser,
        config: RunConfig,
        unmeasured: UnmeasuredSpread | None = None,
        correction: Correction | None = None,
    ) -> None:
        self.problem, self.config = problem, config
        self.denoiser = denoiser.eval()
        self.unmeasured = unmeasured
        """How uncertain pixels are that were not measured; None where that was not learned."""
        self.correction = correction
        """Of the spread of samples; None for a run that was not calibrated."""
        self.sampler = SamplerSettings()
        self.tiled_from, self.tile = TILED_FROM, TILE
        """Images of more pixels are looked at in squares of this side."""

    def __repr__(self) -> str:
        config, problem, r = self.config, self.problem, self.range
        return (
            f"<Restorer: {problem.kind}, σ = {problem.sigma:.4g} of the range {r.low:g} to "
            f"{r.high:g}, {config.data.channels} channel(s), {config.network.size} network, recipe "
            f"{config.recipe.name}, {config.training.steps} steps>"
        )

    @property
    def range(self) -> IntensityRange:
        """The data's units: unit = (value − low) / (high − low), or curved (data/stabilise.py)."""
        return range_of(self.config)

    @torch.no_grad()
    def restore(
        self,
        y: Array,
        sigma: float | ArrayLike | None = None,
        progress: Progress | None = None,
    ) -> Array:
        """The MMSE estimate E[x | y] at noise level ``sigma``: a number, or one for each image.

        Unless told it is σ_n, that of the training; where that had several, it must be told.
        Above σ_n, by the method's own invariance, D(y, σ) = D(αy, ασ)/α with ασ = σ_n.
        ``progress`` hears of the tiles of large images; others are done at once.
        """
        batch, problem = self.measured(y)
        level, alpha = self.levels(len(batch), sigma)
        batch = expand(alpha) * batch
        if self.in_parts(problem, batch.shape[-2:]):
            tiles = len(tiles_of((batch.shape[-2], batch.shape[-1]), self.tile))
            report = _counting(len(batch) * tiles, progress)
            pairs = zip(batch, level, strict=True)
            images = [self._in_memory(*one, self.sampler, report) for one in pairs]
            estimate = torch.cat([restored_in_memory(image) for image in images])
        else:
            estimate = self.denoiser(batch, level, problem.operator)
        return _like(y, estimate / expand(alpha))

    @torch.no_grad()
    def sample(
        self,
        y: Array,
        n: int = 1,
        seed: int | Sequence[int] = 0,
        sigma: float | ArrayLike | None = None,
        settings: SamplerSettings | None = None,
        progress: Progress | None = None,
    ) -> Array:
        """n posterior samples, ``(n, *y.shape)``.

        Sample k depends on the image, the seed and k alone, whatever else is in the batch.
        ``seed`` may be one number per image. The measured part of a sample is a draw of the
        diffusion model. Pixels that were not measured get their conditional mean and, at levels
        where it was learned, independent noise of their remaining uncertainty: right pixel by
        pixel, not as a texture. ``sigma`` is as for `restore`; above σ_n, too, what is sampled is
        the image of contrast α, and divided by α.
        """
        batch, problem = self.measured(y)
        seeds = [operator.index(s) for s in np.atleast_1d(np.asarray(seed, dtype=object))]
        seeds = seeds * len(batch) if np.ndim(seed) == 0 else seeds
        if len(seeds) != len(batch):
            raise NediffError(f"{len(batch)} images need as many seeds, not {len(seeds)}.")
        levels, alpha = self.levels(len(batch), sigma)
        batch = expand(alpha) * batch
        used = settings or self.sampler
        if self.in_parts(problem, batch.shape[-2:]):
            report = self._counted(len(batch) * n, batch.shape[-2:], used, progress)
            images = [
                self._in_memory(*one, used, report) for one in zip(batch, levels, strict=True)
            ]
            pairs = zip(images, seeds, strict=True)
            samples = torch.cat([sampled_in_memory(image, n, s) for image, s in pairs], dim=1)
        else:
            samples = self._sampled_whole(batch, levels, problem, n, seeds, used, progress)
        return _like(y, samples / expand(alpha), leading=(n,))

    def _sampled_whole(
        self,
        batch: Tensor,
        levels: Tensor,
        problem: Problem,
        n: int,
        seeds: list[int],
        settings: SamplerSettings,
        progress: Progress | None,
    ) -> Tensor:
        denoiser, finish = self.denoiser_of(problem), self._finish(settings)
        samples = sample_posterior(denoiser, batch, levels, problem, n, seeds, settings, progress)
        if not finish.needed:
            return samples
        estimate, variance = denoiser(batch, levels), None
        if finish.spread is not None:
            variance = finish.spread.variance(batch, estimate, levels, problem.operator)
        return finish.apply(samples, estimate, variance, levels, problem, seeds)

    def _finish(self, settings: SamplerSettings) -> Finish:
        """What is done to samples that were drawn like this."""
        correction = self.correction if self._corrects(settings) else None
        return Finish(correction, self.unmeasured, self._least)

    # --- images too large for one look ------------------------------------------------------------

    def in_parts(self, problem: Problem, size: Sequence[int]) -> bool:
        """Whether a measurement of this size is looked at tile by tile."""
        large = size[0] * size[1] > self.tiled_from
        return large and problem.operator.fill_reach is not None

    def large(
        self,
        read: Reader,
        size: tuple[int, int],
        sigma: Tensor,
        settings: SamplerSettings,
        canvases: CanvasMaker,
        journal: Journal,
    ) -> LargeImage:
        """The estimate and samples of a measurement of ``size`` that ``read`` reads parts of.

        ``sigma`` (1,) is one of `levels`, for an image of the contrast that goes with it.
        """
        reach, fill = self.denoiser.reach, self.problem.operator.fill_reach
        assert fill is not None  # in_parts
        margin = (NOT_LOCAL if reach is None else reach) + fill
        model = TiledDenoiser(self.denoiser, self.problem, size, self.tile, margin)
        finish = self._finish(settings)
        return LargeImage(model, read, sigma, settings, finish, canvases, journal)

    def _counted(
        self, samples: int, size: Sequence[int], settings: SamplerSettings, show: Progress | None
    ) -> Callable[[int], None] | None:
        """Hears of each tile of each pass, and shows how many there are in all."""
        if show is None:
            return None
        calls, moves = network_calls(settings.solver, settings.steps), settings.steps - 1
        tiles = len(tiles_of((size[0], size[1]), self.tile))
        return _counting(samples * tiles * (calls + moves), show)

    def _in_memory(
        self,
        y: Tensor,
        sigma: Tensor,
        settings: SamplerSettings,
        report: Callable[[int], None] | None = None,
    ) -> LargeImage:
        """Of y (C, H, W) and its noise level, a tensor of no axes."""

        def read(tile: Tile) -> Tensor:
            return y[None, :, tile.rows, tile.columns]

        size = (y.shape[-2], y.shape[-1])
        journal = Journal(report=report)
        return self.large(read, size, sigma[None], settings, in_memory(), journal)

    def _corrects(self, settings: SamplerSettings) -> bool:
        """Whether the correction was found for this way of sampling."""
        return self.correction is not None and self.correction.sampler == settings

    def summarise(
        self,
        y: Array,
        n: int = 16,
        seed: int | Sequence[int] = 0,
        sigma: float | ArrayLike | None = None,
        *,
        data_units: bool = False,
    ) -> Posterior[Array]:
        """Mean, standard deviation and an interval per pixel, from n ≥ 2 posterior samples.

        With ``data_units`` they are of the samples in the data's units: with signal-dependent
        noise the map is curved, and the mean of what is mapped is not the map of the mean.
        """
        if n < 2:
            raise NediffError(f"A spread needs at least 2 samples, not {n}.")
        samples = torch.as_tensor(self.sample(y, n, seed, sigma))
        k, stretch = left_out(n), self._stretch(n, sigma)
        middle, ordered = samples.mean(0), samples.sort(dim=0).values
        # intervals are stretched in unit intensities, in which it was found by how much
        lower, upper = (middle + (stretch or 1.0) * (ordered[j] - middle) for j in (k - 1, n - k))
        if data_units:
            samples, lower, upper = (self._in_data_units(v) for v in (samples, lower, upper))
        return Posterior(
            mean=_like(y, samples.mean(0)),
            sd=_like(y, samples.std(0)),
            lower=_like(y, lower),
            upper=_like(y, upper),
            coverage=promised_coverage(n),
            conformal=stretch is not None,
        )

    def _in_data_units(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.range.from_unit(x.cpu().numpy())).to(x)

    def _stretch(self, n: int, sigma: float | ArrayLike | None) -> float | None:
        """Of the intervals of n samples, if clean images have shown how much they need."""
        at_sigma = sigma is None or bool(np.all(np.asarray(sigma) == self.problem.sigma))
        if self.correction is None or not self._corrects(self.sampler) or not at_sigma:
            return None
        conformal = self.correction.conformal
        return conformal.stretch if conformal is not None and conformal.samples == n else None

    # --- as models of deepinv ---------------------------------------------------------------------

    def as_denoiser(self) -> RestorerDenoiser:
        """A deepinv `Denoiser`: denoiser(x, sigma). For runs that remove noise only."""
        from nediff.interop import RestorerDenoiser

        if self.problem.kind != "denoising":
            raise NediffError(
                f"This run undoes {self.problem.kind} and is no plain denoiser; use "
                "as_reconstructor(), or train one on complete noisy images."
            )
        return RestorerDenoiser(self.denoiser, self.levels)

    def as_reconstructor(self) -> RestorerReconstructor:
        """A deepinv `Reconstructor`: model(y, physics), at the noise level of the physics."""
        from nediff.interop import RestorerReconstructor

        return RestorerReconstructor(self.denoiser, self.levels, self.problem)

    def save(self, folder: str | Path) -> None:
        """Write config.yaml, model.safetensors and the card README.md."""
        from nediff.card import write_card

        save_problem(Path(folder), self.problem)
        weights: dict[str, Tensor] = dict(self.denoiser.named_parameters())
        save_weights(Path(folder), weights)
        if self.unmeasured is not None:
            save_spread(Path(folder), self.unmeasured)
        if self.correction is not None:
            save_correction(Path(folder), self.correction, weights)
        save_config(Path(folder), self.config)
        write_card(Path(folder), self.config)

    @classmethod
    def load(cls, folder: str | Path, physics: Any = None) -> Restorer:
        """Read a run folder; anything wrong with it is said in a sentence.

        ``physics`` is the deepinv physics of a run that was trained with one.
        """
        config = load_config(Path(folder))
        denoiser = build_denoiser(config.network)
        load_weights(Path(folder), denoiser)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        problem = load_problem(Path(folder), config, physics)
        problem = problem.with_operator(problem.operator.to(device))
        spread = load_spread(Path(folder), config, device)
        return cls(problem, denoiser.to(device), config, spread, load_correction(Path(folder)))

    # --- the Hugging Face hub ---------------------------------------------------------------------

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool = False,
        token: str | None = None,
        message: str = "A nediff restorer",
    ) -> str:
        """Publish as ``repo_id`` ("you/cells"); returns the address. Needs nediff[hub].

        What goes there: the settings (config.json), the weights, the operator, the calibration and
        a card; not the names of your images, nor the path of their folder.
        """
        from nediff.hub import upload_run

        with tempfile.TemporaryDirectory() as folder:
            self.save(folder)
            return upload_run(Path(folder), self.config, repo_id, private, token, message)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        physics: Any = None,
    ) -> Restorer:
        """A restorer from the hub ("you/cells"), or from a folder. Needs nediff[hub].

        Only settings and numbers are fetched, by name; nothing of a repository is ever run.
        """
        from nediff.hub import download_run

        folder = Path(name) if Path(name).is_dir() else download_run(str(name), revision, token)
        return cls.load(folder, physics)

    def _batch(self, y: Tensor | NDArray[np.float32]) -> Tensor:
        if not (y.is_floating_point() if isinstance(y, Tensor) else y.dtype.kind == "f"):
            raise NediffError(
                f"The restorer takes floats in unit intensities, not {y.dtype}; convert with "
                "restorer.range.to_unit(y), and the result back with range.from_unit."
            )
        batch = y if isinstance(y, Tensor) else torch.from_numpy(np.array(y, np.float32, order="C"))
        while batch.ndim < 4:
            batch = batch[None]
        channels = self.config.data.channels
        if y.ndim not in (2, 3, 4) or batch.shape[1] != channels:
            raise NediffError(
                f"This restorer was trained on images with {channels} channel(s); "
                f"an array of shape {tuple(y.shape)} does not fit."
            )
        return batch.to(self.device, torch.float32)

    def measured(self, y: Tensor | NDArray[np.float32]) -> tuple[Tensor, Problem]:
        """The measurement as a batch, and the instrument as it measured it."""
        batch = self._batch(y)
        self.problem.check_size(*batch.shape[-2:])
        window = self.problem.operator.window(0, 0, *batch.shape[-2:])
        here = self.problem.with_operator(window)
        return here.lift(batch), here

    def denoiser_of(self, problem: Problem) -> Map:
        """D(y, σ) for measurements by this (part of the) instrument."""
        return lambda y, sigma: self.denoiser(y, sigma, problem.operator)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.denoiser.parameters()).device

    @property
    def _least(self) -> float:
        """The least noise level of the training images."""
        sigmas = self.config.data.sigmas
        return self.problem.sigma if sigmas is None else sigmas.least

    def levels(self, count: int, sigma: float | ArrayLike | None) -> tuple[Tensor, Tensor]:
        """(min(σ, σ_n), α = min(1, σ_n/σ)) of each image, (count,) both."""
        largest = self.problem.sigma
        if sigma is None:
            if self._least != largest:
                raise NediffError(
                    "This run was trained on images of different noise levels, from "
                    f"{self._least:g} to {largest:g}; say how noisy these are (sigma=...)."
                )
            sigma = largest
        values = np.asarray(sigma, dtype=np.float64)
        if values.ndim > 1 or values.size not in (1, count):
            raise NediffError(
                f"{count} images need one noise level or as many, not an array of shape "
                f"{values.shape}."
            )
        for level in values.flat:
            if not 0 < level <= MOST_NOISE * largest:
                raise NediffError(
                    f"σ = {level:g} is outside what was learned, 0 < σ ≤ {largest:g}, and what "
                    f"can be told from it, up to {MOST_NOISE:g} times as much."
                )
        values = np.broadcast_to(values, count)
        alpha = np.minimum(1.0, largest / values)
        alpha = np.where(alpha > 1 - 1e-6, 1.0, alpha)  # as noisy as the training, but for rounding
        level, contrast = torch.tensor(np.minimum(values, largest)), torch.tensor(alpha)
        return level.to(self.device, torch.float32), contrast.to(self.device, torch.float32)


def _counting(total: int, show: Progress | None) -> Callable[[int], None] | None:
    """Shows how many of so many tiles are done whenever it is called."""
    if show is None:
        return None
    done, all_of_them = itertools.count(1), total or 1
    return lambda _: show(min(next(done), all_of_them), all_of_them)


def _like(y: Array, batch: Tensor, leading: tuple[int, ...] = ()) -> Array:
    """Give a result (..., B, C, H, W) the type of the measurement, and as many axes."""
    lead, image = batch.shape[: len(leading)], batch.shape[len(leading) :]
    while len(image) > y.ndim and image[0] == 1:
        image = image[1:]
    shaped = batch.reshape(*lead, *image)
    if isinstance(y, Tensor):
        return shaped.to(y.device)
    out: NDArray[np.float32] = shaped.cpu().numpy()
    return out
