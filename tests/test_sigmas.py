"""Images with noise levels of their own: read, trained on, restored."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
import yaml
from torch import Tensor

import nediff as package
from nediff.cli.levels import image_names
from nediff.data import Measurements, Sigmas, list_files, open_measurements, read_sigmas, split
from nediff.errors import NediffError
from nediff.evaluation import evaluate_blind, evaluate_with_truth
from nediff.operators import Identity
from nediff.problem import Problem
from nediff.randomness import Draws
from nediff.recipes import Batch, recipe_named, training_loss
from nediff.restorer import Restorer
from nediff.training.batches import BatchSource
from nediff.training.fitting import Plan, make_trainer, plan_run, run_training, start_folder
from nediff.training.rehearsal import draw_rehearsal
from nediff.training.validation import SureValidation
from tests.command import TINY, nediff, smooth, succeeded
from tests.test_resume import assert_same_run, interrupt_after

LEVELS = (0.04, 0.04, 0.12, 0.12)
PRIOR = 0.2  # standard deviation of the images of the closed forms


def folder_of(folder: Path, levels: tuple[float, ...] = LEVELS, side: int = 48) -> Path:
    """Noisy float TIFFs a0.tif, a1.tif, … and clean ones in clean/."""
    (folder / "clean").mkdir(parents=True)
    for i, sigma in enumerate(levels):
        x = smooth(i, side, side)
        y = x + sigma * np.random.default_rng(i).standard_normal(x.shape)
        tifffile.imwrite(folder / f"a{i}.tif", y.astype(np.float32))
        tifffile.imwrite(folder / "clean" / f"a{i}.tif", x.astype(np.float32))
    return folder


def table(path: Path, rows: dict[str, object], header: str = "name,sigma") -> Path:
    path.write_text("\n".join([header, *(f"{k},{v}" for k, v in rows.items())]) + "\n")
    return path


def rows_of(levels: tuple[float, ...] = LEVELS) -> dict[str, object]:
    return {f"a{i}.tif": sigma for i, sigma in enumerate(levels)}


def white(count: int = 4, side: int = 40, seed: int = 0) -> Measurements:
    """Images of independent N(0.5, PRIOR²) pixels, as clean data in [0, 1]."""
    random = np.random.default_rng(seed)
    x = 0.5 + PRIOR * random.standard_normal((count, side, side))
    return open_measurements(x.astype(np.float32), range=(0, 1), axes="NHW")


def pictures(numbers: range, side: int) -> Measurements:
    """Clean smooth pictures in [0, 1]."""
    stack = np.stack([smooth(i, side, side) for i in numbers]).astype(np.float32)
    return open_measurements(stack, range=(0, 1), axes="NHW")


def shrink(y: Tensor, sigma: Tensor, operator: object = None) -> Tensor:
    """The MMSE denoiser of those images, at their own mean."""
    weight = (PRIOR**2 / (PRIOR**2 + sigma.square()))[:, None, None, None]
    mean = y.mean(dim=(2, 3), keepdim=True)
    return mean + weight * (y - mean)


# --- the file -----------------------------------------------------------------------------------


def names(folder: Path) -> Any:
    return image_names(list_files(folder))


def test_a_csv_is_read_in_its_units(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "data")
    path = table(tmp_path / "s.csv", {k: 100 * v for k, v in rows_of().items()})  # type: ignore[operator]
    found = read_sigmas(path, names(folder), scale=100.0)
    assert found.by_name == pytest.approx(rows_of())
    assert (found.least, found.largest) == pytest.approx((0.04, 0.12))
    assert found.mean_square == pytest.approx((0.04**2 + 0.12**2) / 2)
    (tmp_path / "again.csv").write_text(found.to_csv())
    again = read_sigmas(tmp_path / "again.csv", names(folder))
    assert again.by_name == found.by_name  # bit for bit
    assert again.fingerprint == found.fingerprint


def test_other_headers_and_orders(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "data", LEVELS[:2])
    path = tmp_path / "s.csv"
    path.write_text("\ufeffexposure,Sigma,File\n1,0.1,a1.tif\n\n2,0.2,a0.tif\n", encoding="utf-8")
    assert read_sigmas(path, names(folder)).by_name == {"a0.tif": 0.2, "a1.tif": 0.1}
    path.write_text("picture,sigma\na0.tif,0.2\na1.tif,0.1\n")
    assert read_sigmas(path, names(folder)).of("a0.tif") == 0.2


def test_pages_of_a_stack_one_by_one_or_together(tmp_path: Path) -> None:
    stack = np.zeros((3, 8, 8), np.float32)
    tifffile.imwrite(tmp_path / "s.tif", stack, photometric="minisblack", metadata={"axes": "TYX"})
    path = table(tmp_path / "a.csv", {"s.tif#0": 0.1, "s.tif#1": 0.2, "s.tif#2": 0.3})
    assert read_sigmas(path, names(tmp_path)).of("s.tif#2") == 0.3
    together = table(tmp_path / "b.csv", {"s.tif": 0.1})
    assert set(read_sigmas(together, names(tmp_path)).by_name.values()) == {0.1}
    both = table(tmp_path / "c.csv", {"s.tif": 0.1, "s.tif#1": 0.2})
    with pytest.raises(NediffError, match=r"line 3: s\.tif#1 has a noise level already, on line 2"):
        read_sigmas(both, names(tmp_path))


BAD: dict[str, tuple[str, str]] = {
    "missing": ("name,sigma\na0.tif,0.1\n", r"no row for a1\.tif"),
    "unknown": ("name,sigma\na0.tif,0.1\na1.tif,0.1\nb.tif,1\n", r"line 4: there is no image 'b"),
    "twice": ("name,sigma\na0.tif,0.1\na1.tif,0.1\na0.tif,0.1\n", r"line 4: a0\.tif has .* line 2"),
    "zero": (
        "name,sigma\na0.tif,0\na1.tif,0.1\n",
        r"line 2 \(a0\.tif\): .* positive number, not 0",
    ),
    "negative": ("name,sigma\na0.tif,0.1\na1.tif,-1\n", r"line 3 .* not -1"),
    "nan": ("name,sigma\na0.tif,nan\na1.tif,0.1\n", "line 2 .* not nan"),
    "huge": ("name,sigma\na0.tif,0.1\na1.tif,25\n", "line 3 .* larger than the intensity range"),
    "tiny": ("name,sigma\na0.tif,1e-9\na1.tif,0.1\n", "line 2 .* practically no noise"),
    "text": ("name,sigma\na0.tif,high\na1.tif,0.1\n", "line 2: 'high' is not a number"),
    "short": ("name,sigma\na0.tif\na1.tif,0.1\n", "line 2: 1 values where the header has 2"),
    "no header": ("a0.tif,0.1\na1.tif,0.1\n", "needs a header with a column 'sigma'"),
    "two names": ("a,b,sigma\na0.tif,1,0.1\n", "which column has the names"),
    "empty": ("", "needs a header"),
    "variation": ("name,sigma\na0.tif,0.1\na1.tif,0.9\n", r"of a1\.tif cannot be right"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_files_are_refused_by_row(tmp_path: Path, what: str) -> None:
    folder = folder_of(tmp_path / "data", LEVELS[:2])
    text, message = BAD[what]
    (tmp_path / "s.csv").write_text(text)
    out = tmp_path / "run"
    sigma = ("--sigma", tmp_path / "s.csv")
    outcome = nediff("train", folder, *sigma, "--out", out, "--steps", 2, *TINY)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    with pytest.raises(NediffError, match=message):
        raise NediffError(outcome.err)
    assert not out.exists()


def test_files_that_are_none(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "data", LEVELS[:2])
    for given, message in (("high", "neither a number nor"), ("none.csv", "there is no file")):
        outcome = nediff("train", folder, "--sigma", given, "--out", tmp_path / "r", "--steps", 2)
        assert outcome.code == 2
        assert message in outcome.err


# --- every part of a run uses the level of the image ----------------------------------------------


def test_parts_of_an_image_keep_its_level() -> None:
    noisy = white(5).with_sigmas([0.1, 0.2, 0.3, 0.4, 0.5])
    train, heldout = split(noisy, 0, crop=16)
    for part in (train, heldout):
        for i in range(len(part)):
            number = int(part.name(i).split("#")[1])
            assert part.sigma_of(i, 9.0) == pytest.approx(0.1 * (number + 1))
    one = white(1, 80).with_sigmas([0.3])
    for part in split(one, 0, crop=16):
        assert part.windows[0].height < 80
        assert part.sigma_of(0, 9.0) == 0.3
    with pytest.raises(NediffError, match="5 images need as many noise levels"):
        noisy.with_sigmas([0.1, 0.2])


def test_simulated_noise_has_the_level_of_each_image() -> None:
    clean = white(3, 200)
    noisy = clean.simulate([0.05, 0.1, 0.2], seed=3)
    assert noisy.simulated == 0.2
    for i, sigma in enumerate((0.05, 0.1, 0.2)):
        assert np.std(noisy.image(i) - clean.image(i)) == pytest.approx(sigma, rel=0.02)
    assert noisy.clean is not None
    assert noisy.clean.within_variance == pytest.approx(clean.within_variance)
    same = clean.simulate(0.1, seed=3)
    np.testing.assert_array_equal(noisy.image(1), same.image(1))  # only the level differs


def test_pooled_crops_have_the_noise_of_their_image() -> None:
    grey = np.ones((3, 96, 96), np.float32) * np.arange(3, dtype=np.float32)[:, None, None]
    flat = open_measurements(grey, range=(0, 1), axes="NHW")
    noisy = flat.simulate([0.05, 0.1, 0.2], seed=1)
    problem = Problem.denoising(0.2)
    source = BatchSource(noisy, problem, 24, 8, (1, 2, 4), (1.0, 1.0, 1.0), seed=0)
    found: dict[float, list[float]] = {}
    for step in range(60):
        for _, batch in source.groups(step):
            for y, sigma in zip(batch.y, batch.sigma, strict=True):
                found.setdefault(round(float(sigma), 5), []).append(float(y.var()))
    assert set(found) == {0.05, 0.1, 0.2, 0.025, 0.0125}  # 0.2/2 = 0.1 and so on
    for sigma, variances in found.items():
        # the crops overlap: pooled by 4 there are 576 values, a standard error of 6 %
        assert np.mean(variances) == pytest.approx(sigma**2, rel=0.2)


def test_the_expected_loss_is_the_error_at_the_level_of_each_image() -> None:
    """Law 2 for a batch of mixed noise: E loss = MSE of shrinkage at the level it was drawn at."""
    levels = torch.tensor([0.05, 0.2])
    problem, recipe = Problem.denoising(0.2), recipe_named("default")
    recipe = recipe.model_copy(update={"weighted": False, "alpha_min": 0.999, "mu_max": 0.0})
    clean = PRIOR * torch.randn(2, 1, 96, 96, generator=torch.Generator().manual_seed(0))
    totals = torch.zeros(2)
    seen: list[tuple[Tensor, Tensor]] = []

    def network(y: Tensor, sigma: Tensor, operator: object) -> Tensor:
        seen.append((y, sigma))
        return 0.5 * y

    count = 60
    for k in range(count):
        draws = Draws(k, "law", 2)
        y = clean + levels[:, None, None, None] * draws.normal_like(clean)
        totals += training_loss(recipe, network, Batch(y, levels, problem), draws)
    # level 0.2 for both: full contrast for the cleaner image, 1/√2 of it (τ = 1) for the other
    level = torch.stack([sigma for _, sigma in seen]).mean(0)
    assert torch.allclose(level, torch.full((2,), 0.2), rtol=1e-3)
    contrast = torch.tensor([1.0, 0.5**0.5])
    variance = clean.var(dim=(1, 2, 3)) * contrast.square()
    expected = 0.25 * variance + 0.25 * 0.2**2  # of D = y/2
    assert torch.allclose(totals / count, expected, rtol=0.03)


def test_validation_is_by_the_level_of_each_image() -> None:
    """SURE at each image's own σ: the estimate is the true error of shrinkage."""
    sigmas = [0.05, 0.3]
    clean = white(2, 320)
    problem = Problem.denoising(0.3)
    validation = SureValidation(clean.simulate(sigmas, seed=0), problem, seed=0, side=320)
    truth = np.mean([s**2 * PRIOR**2 / (s**2 + PRIOR**2) for s in sigmas])
    # 200 000 values: a standard error of about 0.05 dB
    assert validation.estimated_psnr(shrink) == pytest.approx(-10 * np.log10(truth), abs=0.2)
    wrong = SureValidation(clean.simulate(0.3, 0), problem, 0, side=320)
    assert wrong.estimated_psnr(shrink) < validation.estimated_psnr(shrink) - 1


def test_rehearsed_samples_begin_at_the_level_of_their_image() -> None:
    seen: list[float] = []

    def network(y: Tensor, sigma: Tensor, operator: object) -> Tensor:
        seen.append(round(float(sigma[0]), 6))
        return shrink(y, sigma)

    noisy = white(4, 40).simulate([0.05, 0.1, 0.2, 0.4], seed=0)
    draw_rehearsal(network, noisy, Problem.denoising(0.4), 24, 20 * 40**2, seed=0)
    first = [level for level in seen if level in (0.05, 0.1, 0.2, 0.4)]
    assert set(first) == {0.05, 0.1, 0.2, 0.4}
    samples = draw_rehearsal(shrink_net, noisy, Problem.denoising(0.4), 24, 40 * 40**2, seed=1)
    # posterior samples are draws of the prior, whatever the noise they were drawn from
    assert float(samples.x.std()) == pytest.approx(PRIOR, rel=0.06)


def shrink_net(y: Tensor, sigma: Tensor, operator: object) -> Tensor:
    return shrink(y, sigma)


# --- restoring at other levels --------------------------------------------------------------------


class Shrink(torch.nn.Module):
    """The MMSE denoiser of white images, as a network."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = torch.nn.Parameter(torch.zeros(1))

    def forward(self, y: Tensor, sigma: Tensor, operator: object = None) -> Tensor:
        return shrink(y, sigma)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """(run, data, csv) of images of two groups."""
    folder = tmp_path_factory.mktemp("sigmas")
    data = folder_of(folder / "data")
    path = table(folder / "s.csv", rows_of())
    options = ("--sigma", path, "--out", folder / "run", "--steps", 12, *TINY)
    outcome = succeeded("train", data, *options)
    assert "noise σ of each image from 0.04 to 0.12" in outcome.err
    return folder / "run", data, path


def restorer_of(run: Path) -> Restorer:
    restorer = package.load(run)
    return Restorer(restorer.problem, Shrink(), restorer.config)  # type: ignore[arg-type]


def test_levels_of_a_batch_are_those_of_each_alone(trained: tuple[Path, Path, Path]) -> None:
    restorer = package.load(trained[0])
    y = np.stack([smooth(i)[None].astype(np.float32) for i in range(3)])
    levels = [0.05, 0.12, 0.2]  # the last is above those of the training
    together = restorer.restore(y, levels)
    samples = restorer.sample(y, 2, [7, 8, 9], levels)
    for i, level in enumerate(levels):
        assert np.allclose(together[i], restorer.restore(y[i], level), atol=1e-5)
        assert np.allclose(samples[:, i], restorer.sample(y[i], 2, 7 + i, level), atol=1e-4)
    for call in (restorer.restore, restorer.sample):
        with pytest.raises(NediffError, match=r"different noise levels, from 0\.04 to 0\.12"):
            call(y)
        with pytest.raises(NediffError, match="3 images need one noise level or as many"):
            call(y, sigma=[0.1, 0.1])


def test_more_noise_than_learned_is_less_contrast(trained: tuple[Path, Path, Path]) -> None:
    """D(y, σ) = D(αy, ασ)/α exactly, ασ = σ_n; samples likewise."""
    restorer = package.load(trained[0])
    y = smooth(0)[None].astype(np.float32)
    alpha = np.float32(0.12 / 0.2)
    np.testing.assert_allclose(
        restorer.restore(y, 0.2), restorer.restore(alpha * y, 0.12) / alpha, atol=1e-5
    )
    np.testing.assert_allclose(
        restorer.sample(y, 2, 0, 0.2), restorer.sample(alpha * y, 2, 0, 0.12) / alpha, atol=1e-4
    )
    with pytest.raises(NediffError, match="outside what was learned"):
        restorer.restore(y, 0.25)


def test_evaluation_is_by_the_level_of_each_image(trained: tuple[Path, Path, Path]) -> None:
    restorer = restorer_of(trained[0])
    clean = white(3, 96)
    levels = [0.05, 0.12, 0.2]
    noisy = clean.simulate(levels, seed=0)
    found = evaluate_with_truth(restorer, noisy, clean, samples=6)
    assert found.sigma == pytest.approx(np.sqrt(np.mean(np.square(levels))))
    assert found.spread is not None
    # at 0.2 the shrinkage of αy is not that of the prior: leave that image out of this law
    two = evaluate_with_truth(restorer, noisy.select([0, 1]), clean.select([0, 1]), samples=8)
    assert two.spread is not None
    assert two.spread.error2_over_variance == pytest.approx(1, abs=0.06)
    assert two.consistency == pytest.approx(1, abs=0.06)
    truth = np.mean([s**2 * PRIOR**2 / (s**2 + PRIOR**2) for s in levels[:2]])
    blind = evaluate_blind(restorer, noisy.select([0, 1])).blind
    assert blind.estimated_psnr == pytest.approx(-10 * np.log10(truth), abs=0.25)
    assert blind.predicted_psnr == pytest.approx(-10 * np.log10(truth), abs=0.25)


def test_the_command_line_round_trip(trained: tuple[Path, Path, Path], tmp_path: Path) -> None:
    run, data, path = trained
    config = yaml.safe_load((run / "config.yaml").read_text())["data"]
    assert config["sigma"] == 0.12
    assert config["sigmas"]["least"] == 0.04
    assert "σ from 0.04 to 0.12" in (run / "README.md").read_text()
    refused = nediff("restore", run, data, "--out", tmp_path / "no")
    assert refused.code == 2
    assert "say how noisy these are with --sigma" in refused.err
    refused = nediff("evaluate", run, data)
    assert "say how noisy these are with --sigma" in refused.err
    succeeded("restore", run, data, "--sigma", path, "--samples", 2, "--out", tmp_path / "all")
    restorer = package.load(run)
    for i, sigma in enumerate(LEVELS):
        y = tifffile.imread(data / f"a{i}.tif")[None]
        expected = restorer.restore(restorer.range.to_unit(y), sigma)[0]
        written = tifffile.imread(tmp_path / "all" / "restored" / f"a{i}.tif")
        np.testing.assert_allclose(written, restorer.range.from_unit(expected), atol=1e-5)
    # some of the images, by the same file; one number; and more noise than was learned
    one = data / "a2.tif"
    succeeded("restore", run, one, "--sigma", path, "--out", tmp_path / "one")
    succeeded("restore", run, one, "--sigma", 0.12, "--out", tmp_path / "two")
    same = [tifffile.imread(tmp_path / k / "restored" / "a2.tif") for k in ("one", "two")]
    np.testing.assert_array_equal(*same)
    louder = succeeded("restore", run, one, "--sigma", 0.18, "--out", tmp_path / "loud")
    assert "1.5 times as noisy" in louder.err
    refused = nediff("restore", run, one, "--sigma", 0.3, "--out", tmp_path / "no")
    assert "outside what was learned" in refused.err
    assert not (tmp_path / "no").exists()


def test_evaluate_by_the_command_line(trained: tuple[Path, Path, Path], tmp_path: Path) -> None:
    run, data, path = trained
    succeeded("evaluate", run, data, "--sigma", path, "--clean", data / "clean", "--samples", 2)
    clean = ("evaluate", run, data / "clean", "--samples", 0)
    succeeded(*clean, "--simulate", path)
    refused = nediff(*clean, "--simulate", path, "--sigma", path)
    assert "leave --sigma out" in refused.err


# --- a run of two groups of images ----------------------------------------------------------------


def test_a_stopped_run_goes_on_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = folder_of(tmp_path / "data")
    path = table(tmp_path / "s.csv", rows_of())
    options = ("--sigma", path, "--steps", 14, *TINY)
    succeeded("train", data, "--out", tmp_path / "a", *options)
    interrupt_after(monkeypatch, 6)
    assert nediff("train", data, "--out", tmp_path / "b", *options).code == 130
    monkeypatch.undo()
    resume = ("train", data, "--out", tmp_path / "b", "--resume")
    other = table(tmp_path / "other.csv", rows_of((0.04, 0.05, 0.12, 0.12)))
    refused = nediff(*resume, "--sigma", other)
    assert "was begun with σ = 0.04 for a1.tif, not 0.05" in refused.err
    assert "begun with a CSV of levels" in nediff(*resume, "--sigma", 0.12).err
    shutil.copy(tmp_path / "b" / "sigmas.csv", tmp_path / "kept.csv")
    table(tmp_path / "b" / "sigmas.csv", rows_of((0.04, 0.05, 0.12, 0.12)))
    assert "its levels have changed" in nediff(*resume).err
    shutil.copy(tmp_path / "kept.csv", tmp_path / "b" / "sigmas.csv")
    succeeded(*resume)  # the levels are recorded: the file need not be given again
    succeeded(*resume, "--sigma", path)
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_one_level_and_a_csv_are_not_mixed_up(tmp_path: Path) -> None:
    data = folder_of(tmp_path / "data", LEVELS[:2])
    run = ("train", data, "--out", tmp_path / "r", "--steps", 2, *TINY)
    succeeded(*run, "--sigma", 0.04)
    path = table(tmp_path / "s.csv", rows_of(LEVELS[:2]))
    assert (
        "begun with one noise level for all images" in nediff(*run, "--resume", "--sigma", path).err
    )


def test_simulated_levels_by_the_command_line(tmp_path: Path) -> None:
    clean = folder_of(tmp_path / "data") / "clean"
    path = table(tmp_path / "s.csv", rows_of())
    run = ("train", clean, "--out", tmp_path / "r", "--steps", 2, *TINY)
    succeeded(*run, "--simulate", path)
    config = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())["data"]
    assert (config["simulate"], config["sigma"], config["sigmas"]["least"]) == (0.12, 0.12, 0.04)
    succeeded(*run, "--resume", "--simulate", path)
    other = table(tmp_path / "other.csv", rows_of((0.04, 0.05, 0.12, 0.12)))
    assert "not 0.05" in nediff(*run, "--resume", "--simulate", other).err
    known = ("train", clean.parent, "--out", tmp_path / "k", "--steps", 2, *TINY)
    succeeded(*known, "--sigma", path)
    assert "begun without it" in nediff(*known, "--resume", "--simulate", path).err


def test_python_takes_an_array(tmp_path: Path) -> None:
    noisy = open_measurements(folder_of(tmp_path / "data"))
    restorer = package.fit(
        noisy, np.array(LEVELS), steps=3, size="tiny", crop=24, out=tmp_path / "r"
    )
    assert restorer.problem.sigma == 0.12
    assert (tmp_path / "r" / "sigmas.csv").is_file()
    assert restorer.restore(noisy[0], LEVELS[0]).shape == noisy[0].shape
    with pytest.raises(NediffError, match="as many noise levels"):
        package.fit(noisy, [0.1, 0.2], steps=1)
    with pytest.raises(NediffError, match=r"the largest of the images is 0\.12"):
        package.fit(noisy.with_sigmas(LEVELS), 0.1, steps=1)


def test_a_run_is_not_trained_on_other_levels() -> None:
    noisy = white().with_sigmas(LEVELS)
    plan = Plan(steps=2, size="tiny", crop=24, batch=2)
    config = plan_run(noisy, Problem.denoising(0.12), plan, "(in memory)")
    with pytest.raises(NediffError, match="not those that the run was planned with"):
        make_trainer(config, white(), None)


def test_incomplete_images_have_levels_of_their_own(tmp_path: Path) -> None:
    """Masks: the misses of hidden pixels, too, are learned at the level of each image."""
    mask = (np.random.default_rng(0).uniform(size=(40, 40)) < 0.7).astype(np.float32)
    clean = pictures(range(4), 40)
    problem = Problem.inpainting(mask, 0.12)
    noisy = clean.simulate(LEVELS, 0, problem)
    restorer = package.fit(noisy, problem, steps=4, size="tiny", crop=24, out=tmp_path / "r")
    samples = restorer.sample(noisy[0], 2, 0, 0.04)
    assert restorer.unmeasured is not None
    missing = mask[None] == 0
    assert np.any(np.abs(samples[0] - samples[1])[missing] > 0)
    low = restorer.sample(noisy[0], 2, 0, 0.02)  # below all levels it was learned at: no spread
    assert np.isfinite(low).all()


def test_two_groups_teach_each_other(tmp_path: Path) -> None:
    """Trained with each image's own σ, both groups come out better than with one σ for all.

    The one σ is the root mean square, as if it had been measured over the whole set.
    """
    levels = (0.03, 0.15) * 4
    clean = pictures(range(8), 64)
    noisy = clean.simulate(levels, seed=0)
    rms = float(np.sqrt(np.mean(np.square(levels))))
    blurred = noisy._with(sigmas=None)  # the same noisy images, their levels forgotten
    errors: dict[str, list[float]] = {}
    for name, data, sigma in (("own", noisy, 0.15), ("one", blurred, rms)):
        plan = Plan(steps=60, size="tiny", crop=32, batch=4, recipe="default")
        config = plan_run(data, Problem.denoising(sigma), plan, "(in memory)")
        start_folder(tmp_path / name, config, None, data.sigmas)
        restorer, _ = run_training(config, data, tmp_path / name)
        test = pictures(range(20, 24), 64)
        groups = []
        for level in (0.03, 0.15):
            shown = test.simulate(level, seed=5)
            told = level if name == "own" else rms
            found = [restorer.restore(shown[i], told) - test[i] for i in range(len(test))]
            groups.append(float(np.mean(np.square(found))))
        errors[name] = groups
    assert errors["own"][0] < 0.8 * errors["one"][0]
    assert errors["own"][1] < 1.05 * errors["one"][1]


def test_levels_by_name_need_every_name() -> None:
    with pytest.raises(NediffError, match="no noise level for array#1"):
        white(2).with_sigmas(Sigmas({"array#0": 0.1}))
    assert isinstance(Problem.denoising(0.1).operator, Identity)
