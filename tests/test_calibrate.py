"""Calibration without the truth: unbiased in classes, detects wrong samplers, puts them right."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from nediff.correction import CALIBRATION_FILE, AtLevel, Conformal, Correction, load_correction
from nediff.data import Measurements, open_measurements
from nediff.errors import NediffError
from nediff.evaluation import evaluate_blind
from nediff.evaluation.calibrate import (
    MOST_PARTS,
    calibrate,
    conformalise,
    corrected,
    needed_stretch,
    risk_controlling,
    split_in_half,
)
from nediff.evaluation.revealed import (
    CLASSES,
    TAU,
    Pair,
    _edges,
    _fitted,
    _sums,
    draw_pair,
    fit_correction,
    summarise_pairs,
    together,
)
from nediff.networks import Denoiser
from nediff.operators.coloured import Colour
from nediff.problem import Problem, random_mask
from nediff.restorer import Restorer
from nediff.sampling import SamplerSettings
from tests.command import nediff, succeeded
from tests.test_evaluation import SIGMA, restorer

FINE = SamplerSettings(steps=16, sigma_min_ratio=0.02)
SIDE = 32
SPREADS = (0.5 * SIGMA, 2 * SIGMA)
"""Prior standard deviation of the left and of the right half of each image."""


class TwoHalves(Denoiser):
    """The MMSE denoiser of independent pixels N(0, (αs)²), s by halves, of images times α."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        s = torch.full((SIDE, SIDE), SPREADS[0])
        s[:, SIDE // 2 :] = SPREADS[1]
        self.variance = torch.nn.Parameter((alpha * s).square(), requires_grad=False)

    def forward(self, y: Tensor, sigma: Tensor, operator: object = None) -> Tensor:
        gain = self.variance / (self.variance + sigma.square()[:, None, None, None])
        return gain * y


def two_halves(alpha: float = 1.0, problem: Problem | None = None) -> Restorer:
    bare = restorer(1.0)
    made = Restorer(problem or bare.problem, TwoHalves(alpha), bare.config)
    made.sampler = FINE
    return made


@pytest.fixture(scope="module")
def halves() -> Measurements:
    """Images whose left half is weak and whose right half is strong."""
    scale = np.full((SIDE, SIDE), SPREADS[0])
    scale[:, SIDE // 2 :] = SPREADS[1]
    white = np.random.default_rng(0).normal(size=(60, SIDE, SIDE))
    return open_measurements((scale * white).astype(np.float32), axes="NHW", range=(0, 1))


def pairs_of(made: Restorer, noisy: Measurements, clean: Measurements | None, n: int = 8) -> list:
    return [
        draw_pair(
            made,
            torch.from_numpy(noisy.image(i)),
            SIGMA,
            n,
            noisy.name(i),
            0,
            None if clean is None else made.problem.A(torch.from_numpy(clean.image(i))[None])[0],
        )
        for i in range(len(noisy))
    ]


@pytest.mark.parametrize("factor", [1.0, 0.25, 4.0])
def test_pairs_tell_a_spread_that_is_wrong(halves: Measurements, factor: float) -> None:
    """The exact sampler of what pairs are drawn from, αx, widened or narrowed on purpose.

    error²/variance is then 1/factor in every class, within four of its own standard errors
    (and 2 % for the 16 steps of the sampler).
    """
    made = two_halves(1 / math.sqrt(1 + TAU**2))
    made = corrected(made, Correction(factor, 0.0, FINE))
    noisy = halves.simulate(SIGMA, 1)
    found = summarise_pairs(pairs_of(made, noisy, halves), 8)
    assert found.ratio == pytest.approx(1 / factor, abs=4 * found.ratio_error + 0.02 / factor)
    for part in found.classes:
        assert part.ratio == pytest.approx(1 / factor, abs=4 * part.ratio_error + 0.03 / factor)
        assert part.ratio_error < 0.6 / factor  # and says something


def test_pairs_judge_the_floor_that_images_of_full_contrast_get(halves: Measurements) -> None:
    """The exact sampler with a needless floor of 0.2 σ²: variances v of 2/9 and 4/3 σ² by halves.

    In pairs of contrast α the floor is α² as large, so that the ratio is v/(v + 0.2 σ²).
    """
    made = two_halves(1 / math.sqrt(1 + TAU**2))
    wide = corrected(made, Correction(1.0, 0.2, FINE))
    found = summarise_pairs(pairs_of(wide, halves.simulate(SIGMA, 1), None), 8)
    expected = (2 / 9 + 4 / 3) / (2 / 9 + 4 / 3 + 0.4)
    assert found.ratio == pytest.approx(expected, abs=4 * found.ratio_error + 0.02)
    assert found.ratio_error < 0.02  # it would be 0.66 with the floor as it is


@pytest.mark.parametrize("masked", [False, True])
def test_pairs_are_unbiased_in_classes_for_any_denoiser(halves: Measurements, masked: bool) -> None:
    """A prior that is quite wrong: by noisy values and by the truth the same, class by class."""
    problem = Problem.denoising(SIGMA)
    if masked:
        problem = Problem.inpainting(random_mask(0.7, (SIDE, SIDE), 0), SIGMA)
    made = two_halves(3.0, problem)
    noisy = halves.simulate(SIGMA, 1, problem if masked else None)
    found = summarise_pairs(pairs_of(made, noisy, halves), 8)
    off = [(c.ratio - c.true_ratio) / c.ratio_error for c in [*found.classes, found]]
    assert np.abs(off).max() < 4
    assert abs(found.true_ratio - 1) > 0.05  # it is wrong, after all


def test_a_factor_and_a_floor_are_found(halves: Measurements) -> None:
    """Samples narrowed to a quarter of the variance everywhere, of which a part was lost."""
    made = two_halves(1 / math.sqrt(1 + TAU**2))
    narrow = corrected(made, Correction(0.25, 0.0, FINE))
    noisy = halves.simulate(SIGMA, 1)
    factor, floor = fit_correction(pairs_of(narrow, noisy, None))
    # variances are 0.2 and 0.8 σ² before, a quarter after; the error of a class is 3 %
    assert factor == pytest.approx(4.0, rel=0.15)
    assert floor < 0.05
    pairs = pairs_of(made, noisy, None)
    lost = [type(p)(p.sorting, np.maximum(p.variance - 0.1, 0), p.error) for p in pairs]
    factor, floor = fit_correction(lost)
    assert factor == pytest.approx(1.0, abs=0.15)
    assert floor == pytest.approx(0.1, abs=0.05)


def test_a_floor_is_found_by_images_of_several_noise_levels(halves: Measurements) -> None:
    """Samples that lack 0.1 σ² of variance, σ the noise of each image: one floor for all."""
    alpha = 1 / math.sqrt(1 + TAU**2)
    made = two_halves(alpha)
    exact, prior = made.sample, made.denoiser.variance

    def less(y: Tensor, n: int, seed: int, sigma: float) -> Tensor:
        drawn, mean = exact(y, n, seed, sigma), made.restore(y, sigma=sigma)
        variance = prior * sigma**2 / (prior + sigma**2)
        return mean + (1 - 0.1 * (alpha * sigma) ** 2 / variance).sqrt() * (drawn - mean)

    made.sample = less  # type: ignore[method-assign,assignment]
    pairs = []
    for k, level in enumerate((SIGMA, SIGMA / 4)):
        noisy = halves.select(range(k, 60, 2)).simulate(level, 1)
        for i in range(len(noisy)):
            y = torch.from_numpy(noisy.image(i))
            pairs.append(draw_pair(made, y, level, 8, noisy.name(i), 0))
    factor, floor = fit_correction(pairs)
    # as with one level above; in units of the largest level it would be near zero
    assert factor == pytest.approx(1.0, abs=0.15)
    assert floor == pytest.approx(0.1, abs=0.05)


class ByChannel(torch.nn.Module):
    """The MMSE denoiser of white images of one variance, with other noise in each channel."""

    def __init__(self, of_noise: Tensor) -> None:
        super().__init__()
        self.of_noise = torch.nn.Parameter(of_noise[None, :, None, None], requires_grad=False)

    def forward(self, y: Tensor, sigma: Tensor, operator: object = None) -> Tensor:
        return y * SIGMA**2 / (SIGMA**2 + self.of_noise * sigma.square()[:, None, None, None])


def test_pairs_are_unbiased_in_classes_where_channels_differ_in_noise() -> None:
    """The channel with four times the noise of the others is a class of its own."""
    of_noise = np.array([2.0, 0.5, 0.5])
    colour = Colour(np.array([0.0, 0.5]), np.stack([np.diag(of_noise)] * 2))
    problem, bare = Problem.denoising(SIGMA, 3, colour), restorer(1.0)
    variance = problem.operator.noise_variance(torch.zeros(1, 3, SIDE, SIDE))
    assert variance[0].mean(dim=(1, 2)).tolist() == pytest.approx(of_noise)
    data = bare.config.data.model_copy(update={"channels": 3})
    config = bare.config.model_copy(update={"data": data})
    made = Restorer(problem, ByChannel(torch.from_numpy(of_noise).float()), config)
    made.sampler = FINE
    x = torch.from_numpy(np.random.default_rng(0).normal(0, SIGMA, (30, 3, SIDE, SIDE))).float()
    pairs = []
    for i, clean in enumerate(x):
        white = torch.randn(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(i))
        y = clean + SIGMA * problem.noise(white)[0]
        pairs.append(draw_pair(made, y, SIGMA, 8, str(i), 0, clean))
    found = summarise_pairs(pairs, 8)
    off = [(c.ratio - c.true_ratio) / c.ratio_error for c in [*found.classes, found]]
    assert np.abs(off).max() < 4
    assert max(c.ratio_error for c in found.classes) < 0.2  # and says something


def test_what_chance_explains_is_left_alone(halves: Measurements) -> None:
    """The exact sampler, and six images at a time: the correction that least squares finds there
    is chance. Over ten draws the one that is made is nearer to none than half of it."""
    made = two_halves(1 / math.sqrt(1 + TAU**2))
    pairs = pairs_of(made, halves.simulate(SIGMA, 1), None)
    made_sizes, found_sizes = [], []
    for k in range(10):
        few = pairs[6 * k : 6 * k + 6]
        factor, floor = fit_correction(few)
        made_sizes.append(abs(factor - 1) + floor)
        edges = _edges(few, 2 * CLASSES)
        free, free_floor = _fitted(np.stack([_sums(pair, edges) for pair in few]))
        found_sizes.append(abs(free - 1) + free_floor)
    assert np.mean(made_sizes) < 0.5 * np.mean(found_sizes)


def test_calibration_mends_what_it_finds(halves: Measurements) -> None:
    """Both halves of the images; the report is of those that were not fitted."""
    made = two_halves(1 / math.sqrt(1 + TAU**2))
    made.denoiser.variance *= 0.5  # too sure of itself
    noisy = halves.simulate(SIGMA, 1).select(range(40))
    found = calibrate(made, noisy)
    assert found.before.ratio > 1.15
    assert found.after.ratio == pytest.approx(1.0, abs=4 * found.after.ratio_error + 0.03)
    assert found.correction.factor > 1.1
    assert found.before.images == found.after.images == len(noisy) // 2
    seen = evaluate_blind(corrected(made, found.correction), noisy, samples=8).blind
    unseen = evaluate_blind(made, noisy, samples=8).blind
    assert seen.error2_over_variance < unseen.error2_over_variance


def test_no_image_is_on_both_sides() -> None:
    """Large images are cut into parts; those of one image all fit or all judge."""
    pixels = np.random.default_rng(0).random((5, 200, 300), np.float32)
    large = open_measurements(pixels, axes="NHW", range=(0, 1))
    parts = [
        replace(w, top=top, left=left, height=100, width=75)
        for w in large.windows
        for top in (0, 100)
        for left in (0, 75, 150, 225)
    ]
    fitting, judging = split_in_half(parts, seed=0)
    names = [{part.source_name for part in half} for half in (fitting, judging)]
    assert names[0].isdisjoint(names[1])
    assert len(fitting) + len(judging) == len(parts)
    upper, lower = split_in_half(parts[:8], seed=0)  # of a single image
    assert {part.top for part in upper} == {0}
    assert {part.top for part in lower} == {100}
    many = [replace(part, left=left) for part in parts for left in range(20)]
    assert [len(half) for half in split_in_half(many, 0)] == [MOST_PARTS // 2] * 2


def test_chance_is_from_image_to_image() -> None:
    """Parts of an image that share their error: taken for independent, they would hide it.

    Each image has 16 parts and an error of its own, so the standard error over images is four
    times that over parts.
    """
    rng = np.random.default_rng(0)
    image_error = rng.exponential(size=40)
    ones = np.ones(8)
    parts = [[Pair(ones, ones, e * ones) for _ in range(16)] for e in image_error]
    apart = summarise_pairs([part for image in parts for part in image], 6)
    joined = summarise_pairs([together(image) for image in parts], 6)
    assert joined.ratio == pytest.approx(apart.ratio)
    assert joined.ratio_error == pytest.approx(4 * apart.ratio_error, rel=0.05)
    assert joined.ratio_error == pytest.approx(image_error.std(ddof=1) / 40**0.5, rel=1e-6)


def test_a_noise_level_that_is_too_large_is_refused() -> None:
    """Nearly even images with noise of σ/2: the errors that pairs tell are negative."""
    even = np.random.default_rng(0).normal(0.5, 0.1 * SIGMA, (20, SIDE, SIDE)).astype(np.float32)
    images, exact = open_measurements(even, axes="NHW", range=(0, 1)), restorer((0.1 * SIGMA) ** 2)
    assert not calibrate(exact, images.simulate(SIGMA, 3)).before.impossible
    with pytest.raises(NediffError, match="σ must be too large"):
        calibrate(exact, images.simulate(SIGMA / 2, 3))


def test_too_few_images_are_refused(halves: Measurements) -> None:
    with pytest.raises(NediffError, match="at least 4 images"):
        calibrate(two_halves(), halves.simulate(SIGMA, 1).select(range(3)))


def test_a_correction_does_what_it_says() -> None:
    """x̂ + √factor (x_k − x̂) + √floor σ ε: the variance of 4000 samples of each pixel, to 12 %."""
    problem = Problem.denoising(SIGMA)
    estimate = torch.full((1, 1, 4, 4), 0.5)
    generator = torch.Generator().manual_seed(0)
    samples = estimate + 0.1 * torch.randn((4000, 1, 1, 4, 4), generator=generator)
    sigma = torch.full((1,), SIGMA)
    out = Correction(0.25, 0.5).apply(samples, estimate, sigma, problem, [3])
    expected = 0.25 * 0.1**2 + 0.5 * SIGMA**2
    torch.testing.assert_close(
        out.var(0), torch.full((1, 1, 4, 4), expected), rtol=0.12, atol=0.0
    )  # five standard errors, √(2/4000) each
    assert torch.equal(Correction().apply(samples, estimate, sigma, problem, [3]), samples)
    masked = Problem.inpainting(torch.eye(4), SIGMA)
    diagonal = Correction(1.0, 0.5).apply(samples, estimate, sigma, masked, [3]) - samples
    assert bool((diagonal[..., ~torch.eye(4, dtype=torch.bool)] == 0).all())  # not measured


def test_what_is_added_has_the_colour_of_the_noise() -> None:
    """The correlation of neighbours exp(−π²/40) (test_coloured.py), that of diagonals its square.

    Of 40 samples of 64² pixels, 160,000 with some hundred correlated around each: to 0.03. A part
    gets what the whole gets there, to a hundredth of its size.
    """
    from tests.test_coloured import colour

    problem = Problem.denoising(SIGMA, 2, colour(2))
    still, sigma = torch.full((40, 1, 2, 64, 64), 0.5), torch.full((1,), SIGMA)
    correction = Correction(1.0, 0.5)
    added = correction.apply(still, still[0], sigma, problem, [3]) - still
    variance = float(added.square().mean())
    assert variance == pytest.approx(0.5 * SIGMA**2, rel=0.03)
    near, same = math.exp(-(math.pi**2) / 40), float(added[..., 1:].square().mean())
    for one, other, expected in (
        (added[..., 1:], added[..., :-1], near),
        (added[..., 1:, :], added[..., :-1, :], near),
        (added[..., 1:, 1:], added[..., :-1, :-1], near**2),
        (added[:, :, 0], added[:, :, 1], 0.5),
    ):
        assert float((one * other).mean()) / same == pytest.approx(expected, abs=0.03)
    part = still[:, :, :, 20:50, 8:30]
    there = correction.apply(part, part[0], sigma, problem, [3], corner=(20, 8)) - part
    torch.testing.assert_close(
        there, added[:, :, :, 20:50, 8:30], rtol=0, atol=1e-2 * variance**0.5
    )


def test_a_correction_depends_on_the_level_where_it_was_found_at_several() -> None:
    """What was found at each level there, what lies in between in between, the ends beyond."""
    known = Correction(2.0, 0.4, lower=(AtLevel(0.05, 1.0, 0.0),))
    levels = torch.tensor([0.02, 0.05, 0.1, 0.2, 0.2])  # 0.1 is half way from 0.05 to 0.2
    factor, floor = known.at(levels, 0.2)
    np.testing.assert_allclose(factor, [1.0, 1.0, 1.5, 2.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(floor, [0.0, 0.0, 0.2, 0.4, 0.4], rtol=1e-6, atol=1e-7)
    problem, estimate = Problem.denoising(0.2), torch.zeros(2, 1, 4, 4)
    samples = torch.ones(3, 2, 1, 4, 4)
    one, other = (
        Correction(4.0, lower=(AtLevel(0.05, 1.0, 0.0),))
        .apply(samples, estimate, torch.tensor([0.05, 0.2]), problem, [0, 1])
        .unbind(1)
    )
    assert bool((one == 1).all() and (other == 2).all())
    with pytest.raises(NediffError, match="increase"):
        Correction(lower=(AtLevel(0.1, 1.0, 0.0), AtLevel(0.05, 1.0, 0.0)))
    with pytest.raises(NediffError, match="no correction"):
        Correction(lower=(AtLevel(0.1, -1.0, 0.0),))


def test_a_correction_is_for_the_sampler_it_was_found_for(halves: Measurements) -> None:
    made, y = two_halves(), halves.simulate(SIGMA, 1).image(0)
    right = corrected(made, Correction(4.0, 0.0, FINE))
    assert not np.allclose(right.sample(y, 2), made.sample(y, 2))
    other = SamplerSettings("euler", 12)
    np.testing.assert_array_equal(
        right.sample(y, 2, settings=other), made.sample(y, 2, settings=other)
    )


def test_stretch_by_hand() -> None:
    truth, mean = np.array([1.0, -1.0, 0.0], np.float32), np.zeros(3, np.float32)
    lower, upper = np.array([-2.0, -2.0, -1.0], np.float32), np.array([0.5, 1.0, 1.0], np.float32)
    assert list(needed_stretch(truth, mean, lower, upper)) == [0.0, 0.5, 2.0]
    ten = [np.arange(1.0, 11.0)] * 9  # shares outside λ: 1, 0.9, … at λ = 0, 1, …
    # (9 (1 − λ/10) + 1)/10 ≤ 0.55 first at λ = 5
    assert risk_controlling(ten, 0.55) == pytest.approx(5.0)
    with pytest.raises(NediffError, match="at least 9 pairs of noisy and clean images, not 8"):
        risk_controlling(ten[:8], 0.1)


def test_conformal_intervals_hold_what_they_promise() -> None:
    """Images of unequal difficulty, N = 9 to calibrate, 400 times: coverage of a tenth image.

    The law: at least 1 − risk on average. Its standard error over 400 repetitions of images
    whose coverage varies by some 0.15 is 0.008; at most 1/(N + 1) = 0.1 above.
    """
    rng, risk, covered = np.random.default_rng(0), 0.25, []
    for _ in range(400):
        hard = rng.lognormal(0, 0.7, size=(10, 1))
        needed = np.sort(np.abs(rng.normal(size=(10, 64)) * hard), axis=1)
        stretch = risk_controlling(list(needed[:9]), risk)
        covered.append(np.mean(needed[9] <= stretch))
    assert 1 - risk - 0.025 < np.mean(covered) < 1 - risk + 0.1 + 0.025


def test_conformal_intervals_are_used(halves: Measurements) -> None:
    made, noisy = two_halves(), halves.simulate(SIGMA, 1)
    narrow = corrected(made, Correction(0.1, 0.0, FINE))
    found = conformalise(narrow, noisy.select(range(20)), halves.select(range(20)))
    assert found.stretch > 2  # √10, less what few pairs cost
    right = corrected(made, Correction(0.1, 0.0, FINE, found))
    held = []
    for i in range(20, 60):
        posterior = right.summarise(noisy.image(i))
        assert posterior.conformal
        inside = (posterior.lower <= halves.image(i)) & (halves.image(i) <= posterior.upper)
        held.append(inside.mean())
    assert np.mean(held) > posterior.coverage - 0.02  # 40,960 pixels
    assert not right.summarise(noisy.image(0), n=8).conformal  # found for 16


def test_conformal_intervals_are_of_the_level_they_are_used_at(halves: Measurements) -> None:
    """Images less noisy than the training do not count, and alone they are refused."""
    made, levels = two_halves(), [SIGMA] * 20 + [SIGMA / 4] * 20
    noisy = halves.select(range(40)).simulate(SIGMA, 1).with_sigmas(levels)
    mixed = conformalise(made, noisy, halves.select(range(40)))
    alone = conformalise(made, noisy.select(range(20)), halves.select(range(20)))
    assert mixed == alone
    with pytest.raises(NediffError, match="0 of 20 images have it"):
        conformalise(made, noisy.select(range(20, 40)), halves.select(range(20, 40)))


def test_conformal_intervals_of_a_scan_know_that_a_picture_is_real() -> None:
    """Errors of sd 1 in both parts of a complex image and intervals of ±1 about it.

    Promised are 13 of 17 = 76 %, which ±1.2 sd hold; a few images cost a little more.
    """
    rng, side, count = np.random.default_rng(0), 16, 40
    truth = rng.normal(5.0, 1.0, (count, 1, side, side)).astype(np.float32)
    whole = np.concatenate([truth, np.zeros_like(truth)], axis=1)
    means = iter(whole + rng.normal(size=whole.shape).astype(np.float32))

    class Scanner:
        """A stand-in for a Restorer."""

        problem = Problem.mri(torch.ones(side), SIGMA)

        def summarise(self, *_: object) -> SimpleNamespace:
            mean = next(means)
            return SimpleNamespace(mean=mean, lower=mean - 1, upper=mean + 1)

    scans = open_measurements(whole, axes="NCHW", range=(0, 1))
    pictures = open_measurements(truth, axes="NCHW", range=(0, 1))
    found = conformalise(Scanner(), scans, pictures)  # type: ignore[arg-type]
    assert 1.1 < found.stretch < 1.5


def test_a_correction_travels_with_the_run(tmp_path: Path) -> None:
    conformal, lower = Conformal(16, 0.88, 1.1, 20), (AtLevel(0.05, 1.1, 0.0),)
    made = corrected(restorer(0.02), Correction(1.2, 0.01, FINE, conformal, {"a": 1}, lower))
    made.save(tmp_path)
    assert load_correction(tmp_path) == made.correction
    path = tmp_path / CALIBRATION_FILE
    for broken in ("{", "[]", "{}", json.dumps({"factor": -1})):
        path.write_text(broken)
        with pytest.raises(NediffError, match="damaged"):
            load_correction(tmp_path)


# the command line


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on noisy smooth fields, with their clean partners."""
    from tests.test_baselines import smooth_fields

    folder = tmp_path_factory.mktemp("calibrate")
    clean = smooth_fields(20, 48, 0)
    rng = np.random.default_rng(1)
    noisy = clean + SIGMA * rng.normal(size=clean.shape).astype(np.float32)
    np.save(folder / "clean.npy", clean)
    np.save(folder / "noisy.npy", noisy)
    options = ["--sigma", SIGMA, "--size", "tiny", "--steps", 30, "--batch", 2, "--crop", 24]
    succeeded(
        "train", folder / "noisy.npy", "--axes", "NHW", "--range", 0, 1, *options,
        "--out", folder / "run",
    )  # fmt: skip
    return folder


def test_the_command_says_what_it_changed(trained: Path) -> None:
    data = (trained / "noisy.npy", "--axes", "NHW")
    done = succeeded("calibrate", trained / "run", *data)
    assert "before" in done.out
    assert "samples deviate" in done.out
    correction = load_correction(trained / "run")
    assert correction is not None
    assert correction.conformal is None
    done = succeeded("calibrate", trained / "run", *data, "--clean", trained / "clean.npy")
    assert "on average over images like these" in done.out
    correction = load_correction(trained / "run")
    assert correction is not None
    assert correction.conformal is not None
    assert correction.conformal.images == 10  # the other half was fitted
    done = succeeded("evaluate", trained / "run", *data, "--json", trained / "e.json")
    assert "95 % confidence" in done.out
    blind = json.loads((trained / "e.json").read_text())["blind"]
    assert len(blind["pairs"]["classes"]) == 10
    done = succeeded("evaluate", trained / "run", *data, "--clean", trained / "clean.npy")
    assert "by the truth" in done.out


def test_bad_input_is_a_sentence(trained: Path, tmp_path: Path) -> None:
    outcome = nediff("calibrate", tmp_path, trained / "noisy.npy", "--axes", "NHW")
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    few = tmp_path / "few.npy"
    np.save(few, np.load(trained / "noisy.npy")[:2])
    outcome = nediff("calibrate", trained / "run", few, "--axes", "NHW")
    assert "at least 4 images" in outcome.err


def test_too_few_clean_images_change_nothing(trained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained / "run", tmp_path / "run")
    (run / CALIBRATION_FILE).unlink(missing_ok=True)
    for name in ("noisy", "clean"):
        np.save(tmp_path / f"{name}.npy", np.load(trained / f"{name}.npy")[:6])
    noisy, clean = (tmp_path / f"{name}.npy" for name in ("noisy", "clean"))
    outcome = nediff("calibrate", run, noisy, "--axes", "NHW", "--clean", clean)
    assert outcome.code == 2
    assert "at least 8 pairs, not 6" in outcome.err
    assert not (run / CALIBRATION_FILE).exists()
