"""The noise learned: UNSURE's closed forms, its multipliers, and `--sigma learn`."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from nediff.card import card_text
from nediff.data import Measurements, open_measurements
from nediff.errors import NediffError
from nediff.keeping import read_tensors
from nediff.networks import Denoiser
from nediff.noise.scored import ScoredBlocks, least_bound, scored_channels
from nediff.operators import Identity
from nediff.problem import Problem, random_mask
from nediff.runs import load_config
from nediff.training.noise import (
    NOISE_FILE,
    NoiseLearner,
    NoisePlan,
    first_guess,
    learning_problem,
    load_plan,
)
from nediff.training.scoring import score_blocks
from nediff.unsure import (
    MOMENTUM,
    RATE,
    REACH,
    Multipliers,
    lagged_divergence,
    lagged_traces,
    score_loss,
)
from tests.command import TINY, nediff, smooth, succeeded
from tests.test_resume import assert_same_run, interrupt_after, stop_after

Array = NDArray[np.float64]


def spectrum(side: int) -> Array:
    """Of smooth Gaussian images; (side, side)."""
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side))
    power: Array = 0.02 * np.exp(-((frequency / 0.3) ** 2))
    power[0, 0] = 0.0  # the denoisers subtract means
    return power


def gaussian(power: Array, count: int, seed: int) -> Array:
    """Periodic Gaussian fields with E|x̂|² = power, per value; (count, side, side)."""
    white = np.random.default_rng(seed).standard_normal((count, *power.shape))
    field: Array = np.fft.ifft2(np.sqrt(power) * np.fft.fft2(white)).real
    return field


def opened(values: Array, axes: str = "NHW") -> Measurements:
    return open_measurements(values.astype(np.float32), axes=axes, range=(0, 1))


def plan(images: Measurements, sigma: float, steps: int, crop: int = 32) -> NoisePlan:
    return NoisePlan(steps, crop, 0, images.fingerprint, sigma, (0.0, 1.0))


class LinearFilter(Denoiser):
    """D(y) = y − 4k ∗ (y − mean), periodic, with one trained kernel k for each channel.

    (4: steps of the optimizer are of one length, and would be short.)
    """

    def __init__(self, channels: int = 1, width: int = 9) -> None:
        super().__init__()
        start = torch.zeros(channels, 1, width, width)
        start[..., width // 2, width // 2] = 0.125
        self.filter = nn.Parameter(start)

    def denoise_centred(self, u: Tensor, sigma: Tensor) -> Tensor:
        half = self.filter.shape[-1] // 2
        wide = F.pad(u, (half, half, half, half), mode="circular")
        return u - 4 * F.conv2d(wide, self.filter, groups=len(self.filter))


# --- the parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_lagged_traces_are_the_taps_of_a_filter(share: float) -> None:
    """J of a convolution is its kernel. 8·40² probes of |k| < 1: an error of 0.01, 4 allowed."""
    random = torch.Generator().manual_seed(0)
    kernel = torch.tensor([[0.1, 0.2, 0.1], [0.3, 0.6, 0.3], [0.1, 0.2, 0.1]])
    measured = (torch.rand(8, 2, 40, 40, generator=random) < share).float()
    probe = measured * torch.randn(8, 2, 40, 40, generator=random)
    change = F.conv2d(probe, kernel.expand(2, 1, 3, 3), padding=1, groups=2)
    traces = lagged_traces(change, probe, measured, 2)
    wanted = F.pad(kernel, (1, 1, 1, 1)).expand(2, 5, 5)
    assert torch.allclose(traces, wanted, atol=0.04)
    assert torch.equal(traces, traces.flip(1, 2))


def test_the_loss_is_sure_in_units_of_the_guess() -> None:
    """D = y/2 of white images of variance 1 with noise 0.5²: MSE/σ² − … is known.

    E‖D − y‖²/σ² = 1.25/4/0.25 = 1.25 and div D = 0.5: 1.25 + 1 − 1. 20 · 64² values: 0.5 %.
    """
    random = torch.Generator().manual_seed(1)
    y = math.sqrt(1.25) * torch.randn(20, 1, 64, 64, generator=random)
    probe = torch.randn(20, 1, 64, 64, generator=random)
    values = score_loss(y / 2, probe / 2, y, probe, 0.5, torch.ones_like(y))
    assert values.shape == (20,)
    assert float(values.mean()) == pytest.approx(1.25, abs=0.04)


def test_momentum_works_and_is_remembered() -> None:
    """The first two steps by hand: v ← βv + (1 − β)d, η ← η(1 + ρv), with d = 1 + ηt."""
    found, t = Multipliers(0.04, 1), -1 / 0.09
    traces = torch.zeros(1, 5, 5)
    traces[0, 2, 2] = t
    eta, velocity = 0.04, 0.0
    for _ in range(2):
        velocity = MOMENTUM * velocity + (1 - MOMENTUM) * (1 + eta * t)
        eta *= 1 + RATE * velocity
        found.ascend(traces)
    assert float(found.white) == pytest.approx(eta, rel=1e-6)
    assert float(found.white_momentum) == pytest.approx(velocity, rel=1e-6)
    assert not found.white.requires_grad  # no graph grows from step to step
    forgetful = Multipliers(0.04, 1)
    for _ in range(2):
        forgetful.white_momentum.zero_()
        forgetful.ascend(traces)
    assert float(forgetful.white) < 0.999 * eta
    for _ in range(300):
        found.ascend(traces)
    assert float(found.white) == pytest.approx(0.09, rel=1e-3)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_the_ascent_is_the_same_at_every_scale(scale: float) -> None:
    """In units of σ², the path does not depend on what σ² is."""
    found, other = Multipliers(0.5, 1), Multipliers(0.5 * scale, 1)
    for _ in range(60):
        found.ascend(torch.full((1, 5, 5), -1.0))
        other.ascend(torch.full((1, 5, 5), -1.0 / scale))
    assert torch.allclose(other.white / scale, found.white, rtol=1e-5)
    assert torch.allclose(other.lags / scale, found.lags, rtol=1e-4, atol=1e-5)


def test_the_multipliers_of_lags_are_the_autocovariance() -> None:
    """Noise alone, of spectrum S: the score has the autocovariance of 1/S, so r ∗ C = δ gives r."""
    across = np.zeros((32, 32))
    across[0, [-1, 0, 1]] = [0.5, 1.125, 0.5]
    power = np.fft.fft2(across).real
    assert power.min() > 0
    score = np.fft.ifft2(1 / power).real
    lags = np.ix_([-2, -1, 0, 1, 2], [-2, -1, 0, 1, 2])
    traces = -torch.from_numpy(score[lags]).float()[None]
    found = Multipliers(1.0, 1)
    for _ in range(3000):
        found.ascend(traces)
    wanted = torch.zeros(1, 3, 3)
    wanted[0, 1] = torch.tensor([0.5, 1.125, 0.5])
    assert torch.allclose(found.lags, wanted, atol=2e-3)
    assert lagged_divergence(found.lags, traces).abs().max() < 1e-3
    # white noise is all that one multiplier can say: 1/C(0) is less than the variance here
    assert float(found.white) == pytest.approx(1 / score[0, 0], rel=1e-3)


def test_the_bound_is_that_of_the_best_combination() -> None:
    """y = x + n with z = x + m known: −y and (y − c z)-like g together give Var(y | z).

    A million draws, whose variances are good to 0.2 %; 1 % is allowed.
    """
    random = np.random.default_rng(0)
    x, n, m = random.standard_normal((3, 1_000_000)) * np.array([[1.0], [0.5], [0.2]])
    y, z = x + n, x + m

    def bound(g: Array, slope: float) -> float:
        sums = np.array([(y * y).sum(), (y * g).sum(), (g * g).sum(), slope * y.size])
        return float(least_bound(sums[:, None], np.array([float(y.size)]))[0])

    known = 0.25 + 1 / (1 + 1 / 0.04)  # σ² + Var(x | z)
    assert bound(z, 0.0) == pytest.approx(known, rel=0.01)
    assert bound(0.3 * z - 0.7 * y, -0.7) == pytest.approx(known, rel=0.01)
    assert bound(-2 * y, -2.0) == pytest.approx(1.25, rel=0.01)  # nothing new: y alone
    assert bound(random.standard_normal(y.size), 0.0) == pytest.approx(1.25, rel=0.01)


# --- closed forms of the whole --------------------------------------------------------------------


@pytest.mark.parametrize("guess", [0.1, 0.12])
def test_unsure_of_gaussian_images(guess: float) -> None:
    """η = m/E‖∇ log p‖² = 1/mean(1/S), S the spectrum of y; and σ² = η (1 − MMSE/σ²).

    48 · 32² values: S is known to 0.6 %, the means over the last steps to about 1 %. 5 % allowed;
    η is 40 % above σ². The first guess does not matter.
    """
    power, sigma = spectrum(32), 0.1
    y = gaussian(power + sigma**2, 48, 0)
    images = opened(0.5 + y)
    total = power + sigma**2
    eta = 1 / (1 / total).mean()
    mmse = (sigma**2 * power / total).mean()
    assert eta == pytest.approx(sigma**2 / (1 - mmse / sigma**2), rel=1e-9)
    assert eta > 1.1 * sigma**2
    learner = NoiseLearner(
        plan(images, guess, 160), images, Problem.denoising(guess), LinearFilter()
    )
    assert learner.run(None, lambda: False, None)
    assert float(learner.unsure) ** 2 == pytest.approx(eta, rel=0.05)
    # without the means of blocks, 1/64 of the values; and by random probes: 2 % each
    assert learner.found().bound ** 2 == pytest.approx(eta, rel=0.08)


def flat_noise(shape: tuple[int, ...], seed: int) -> Array:
    """Constant images of many greys, and white noise of variance one; (…, 64, 64)."""
    return np.random.default_rng(seed).standard_normal((*shape, 64, 64))


def test_channels_have_their_own_multipliers_and_levels() -> None:
    """Flat images: nothing but noise is left, η_c = σ_c²; steps and probes leave 2 % or so, 5 %
    allowed. The flattest 5 % of 24 · 64 blocks: 2 % in σ with the fit; 8 % allowed."""
    sigmas = np.array([0.05, 0.1])
    values = 0.5 + sigmas[:, None, None] * flat_noise((24, 2), 0)
    images = opened(values, "NCHW")
    problem = Problem.denoising(0.07, 2)
    learner = NoiseLearner(plan(images, 0.07, 120), images, problem, LinearFilter(2))
    learner.run(None, lambda: False, None)
    assert learner.unsure.tolist() == pytest.approx(sigmas.tolist(), rel=0.05)
    found = learner.found()
    assert found.channels.varies
    assert [s.value for s in found.channels.sigmas] == pytest.approx(sigmas.tolist(), rel=0.08)
    # not that of the flattest blocks, which are all of the first channel
    assert found.sigma.value == pytest.approx(math.sqrt((sigmas**2).mean()), rel=0.08)
    assert not found.correlated
    assert found.describe().how == "learned"


def test_correlated_noise_is_recovered_and_called_so() -> None:
    """White noise averaged with its neighbour: correlation 0.4 across, 0 down.

    Flat blocks, as `diagnose` looks at them: by four of the errors that they claim.
    """
    white = flat_noise((24,), 1)
    noise = 0.1 * (white + 0.5 * np.roll(white, 1, axis=-1)) / math.sqrt(1.25)
    images = opened(0.5 + noise)
    learner = NoiseLearner(
        plan(images, 0.1, 160), images, Problem.denoising(0.1), LinearFilter(width=5)
    )
    learner.run(None, lambda: False, None)
    found = learner.found()
    assert found.correlated
    assert found.whiteness is not None
    errors = found.whiteness.errors[0, 1], found.whiteness.errors[1, 0]
    assert max(errors) < 0.1
    for correlation, truth, error in zip(
        found.whiteness.neighbours, (0.4, 0.0), errors, strict=True
    ):
        assert abs(correlation - truth) < 4 * error
    assert found.sigma.value == pytest.approx(0.1, rel=0.12)  # as diagnose, up to 12 % less
    # of the multipliers: probes of the last 40 steps, an error of 0.01 or so
    lags = found.lags[0] / found.lags[0, REACH, REACH]
    assert [float(lags[1, 0]), float(lags[0, 1])] == pytest.approx([0.4, 0.0], abs=0.06)
    assert float(found.lags[0, REACH, REACH]) == pytest.approx(0.01, rel=0.1)


class Identical(Denoiser):
    """D(y) = y: a network that has learned nothing."""

    def forward(
        self,
        y: Tensor,
        sigma: Tensor,
        operator: object = None,
        mean: Tensor | None = None,
    ) -> Tensor:
        return y


def test_a_network_that_knows_nothing_does_no_harm() -> None:
    """Then the pixels themselves tell, as without a network.

    The flattest 64 of 1536 flat blocks: 2.5 % in σ with the fit; 8 % allowed.
    """
    images = opened(0.5 + 0.1 * flat_noise((24, 1), 2), "NCHW")
    blocks = score_blocks(Identical(), images, Problem.denoising(0.1))
    assert isinstance(blocks, ScoredBlocks)
    assert scored_channels(blocks).sigmas[0].value == pytest.approx(0.1, rel=0.08)


def test_masks_count_measured_values_only() -> None:
    """Smooth pictures, 60 % measured: an upper bound, at most 15 % too large, never 3 % too small.

    5 % of 8 · 48² · 0.6 values are 550: an error of 3 %.
    """
    mask = random_mask(0.6, (48, 48), 0)
    clean = np.stack([smooth(i, 48, 48) for i in range(8)])
    noise = np.random.default_rng(3).standard_normal(clean.shape)
    images = opened((clean + 0.1 * noise) * mask.numpy())
    problem = learning_problem(Problem.inpainting(mask, 0.5), 1)
    guess = first_guess(images, problem)
    assert guess == pytest.approx(0.1, rel=0.3)
    learner = NoiseLearner(plan(images, guess, 60), images, problem)
    learner.run(None, lambda: False, None)
    found = learner.found()
    assert found.whiteness is None
    assert 0.97 < found.sigma.value / 0.1 < 1.15
    # zeros where nothing is measured would halve it
    blind = NoiseLearner(plan(images, guess, 2), images, Problem.denoising(guess))
    assert isinstance(blind.problem.operator, Identity)
    assert abs(blind.found().sigma.value / 0.1 - 1) > 0.15


# --- interrupted and resumed ----------------------------------------------------------------------


def learner_of(steps: int = 24) -> NoiseLearner:
    clean = np.stack([smooth(i, 40, 40) for i in range(4)])
    noise = np.random.default_rng(0).standard_normal(clean.shape)
    images = opened(clean + 0.1 * noise)
    return NoiseLearner(plan(images, 0.1, steps, crop=24), images, Problem.denoising(0.1))


def test_resumed_learning_equals_uninterrupted(tmp_path: Path) -> None:
    """While the multipliers are held, while they ascend, and while they are averaged."""
    whole = learner_of()
    assert whole.run(None, lambda: False, tmp_path / "a")
    for stop in (5, 9, 7):
        part = learner_of()
        if (tmp_path / "b").exists():
            part.load(tmp_path / "b")
        assert not part.run(None, stop_after(stop), tmp_path / "b")
    last = learner_of()
    last.load(tmp_path / "b")
    assert last.run(None, lambda: False, tmp_path / "b")
    one, other = (load_file(tmp_path / name / NOISE_FILE) for name in "ab")
    assert one.keys() == other.keys()
    assert not [name for name in one if not torch.equal(one[name], other[name])]
    assert last.found().sigma == whole.found().sigma
    for name in ("white", "white_momentum", "lags", "lags_momentum"):
        assert one[f"multipliers.{name}"].abs().max() > 0


def test_forgetting_the_momentum_is_noticed(tmp_path: Path) -> None:
    whole = learner_of()
    whole.run(None, lambda: False, None)
    learner_of().run(None, stop_after(20), tmp_path)
    path = tmp_path / NOISE_FILE
    _, metadata = read_tensors(path)
    state = load_file(path)
    changed = {k: torch.zeros_like(v) if k.endswith("_momentum") else v for k, v in state.items()}
    save_file(changed, path, metadata=metadata)
    forgetful = learner_of()
    forgetful.load(tmp_path)
    forgetful.run(None, lambda: False, None)
    assert not torch.equal(forgetful.multipliers.white, whole.multipliers.white)
    save_file({k: v for k, v in state.items() if "lags" not in k}, path, metadata=metadata)
    with pytest.raises(NediffError, match="does not hold what was learned"):
        learner_of().load(tmp_path)
    save_file(state, path, metadata={"plan": "{}"})
    with pytest.raises(NediffError, match="does not say what was to be learned"):
        load_plan(tmp_path)


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """40 pictures of 48², clean, with simulated noise of 0.1."""
    path = tmp_path_factory.mktemp("unsure") / "clean.npy"
    np.save(path, np.stack([smooth(i, 48, 48) for i in range(40)]).astype(np.float32))
    return (path, "--axes", "NHW", "--range", 0, 1, "--simulate", 0.1)


def test_a_training_can_learn_the_noise_itself(
    data: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `auto`, 40 · 48² values: 2 %, and 8 % is four times that. Stopped or not, the same."""
    options = ("--sigma", "learn", "--steps", 4, *TINY)
    done = succeeded("train", *data, *options, "--out", tmp_path / "a")
    assert "noise learned from the data: σ = " in done.err
    config = load_config(tmp_path / "a")
    assert config.data.sigma == pytest.approx(0.1, rel=0.08)
    known = config.data.sigma_known
    assert known is not None
    assert known.how == "learned"
    assert known.error is not None
    assert 0 < known.error < 0.01
    assert known.bound is not None
    assert known.bound > 0.95 * config.data.sigma
    assert known.unsure is not None
    assert "learned from the data by a network" in card_text(config)
    for stop in (30, 22):  # in the learning, and after it
        interrupt_after(monkeypatch, stop)
        stopped = nediff("train", *data, *options, "--out", tmp_path / "b", "--resume")
        monkeypatch.undo()
        assert stopped.code == 130
        assert "go on with the same command and --resume" in stopped.err
        assert (tmp_path / "b" / "config.yaml").exists() == (stop == 22)
        if stop == 30:
            refused = nediff("train", *data, *options, "--out", tmp_path / "b")
            assert "was learning its noise; add --resume" in refused.err
            other = (*options, "--seed", 3, "--resume")
            refused = nediff("train", *data, *other, "--out", tmp_path / "b")
            assert "resume it with the command it was begun with" in refused.err
            assert refused.code == 2
    succeeded("train", *data, *options, "--out", tmp_path / "b", "--resume")
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_estimated_and_given_are_told_apart(data: tuple[object, ...], tmp_path: Path) -> None:
    for sigma, how in (("auto", "estimated"), (0.1, "given")):
        out = tmp_path / how
        succeeded("train", *data, "--sigma", sigma, "--steps", 1, *TINY, "--out", out)
        known = load_config(out).data.sigma_known
        assert known is not None
        assert known.how == how
        assert (known.error is None) == (how == "given")


def test_what_cannot_be_learned_is_refused(data: tuple[object, ...], tmp_path: Path) -> None:
    options = ("--sigma", "learn", "--steps", 2, *TINY, "--out", tmp_path / "run")
    refused = nediff("train", *data, *options, "--operator", "mri", "--mask-fraction", 0.5)
    assert refused.code == 2
    assert "--sigma learn needs values with neighbours that look alike" in refused.err
    assert "Traceback" not in refused.err
    refused = nediff("restore", tmp_path, data[0], "--out", tmp_path / "x", "--sigma", "learn")
    assert "only train estimates it" in refused.err
    np.save(tmp_path / "constant.npy", np.full((3, 40, 40), 0.5, np.float32))
    constant = (tmp_path / "constant.npy", "--axes", "NHW", "--range", 0, 1)
    refused = nediff("train", *constant, *options)
    assert refused.code == 2
    assert "Traceback" not in refused.err
    assert not (tmp_path / "run").exists()
