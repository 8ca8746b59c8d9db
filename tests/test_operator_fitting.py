"""`nediff.fit` with an operator: measurements that do not fit it, and their intensity range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import nediff
from nediff.data import Measurements, open_measurements
from nediff.errors import NediffError
from nediff.problem import Problem, cartesian_mask
from nediff.restorer import Restorer
from nediff.training.fitting import Plan, plan_run
from tests.instruments import centred_mask, some_mask

SIGMA, H, W = 0.05, 20, 24
MASK = some_mask((H, W), 0.7).numpy()
Array = NDArray[Any]


def pictures(channels: int = 1) -> Measurements:
    row, column = np.mgrid[0:H, 0:W]
    waves = [np.sin(row / (3 + i) + column / 5) for i in range(6)]
    images = 0.5 + 0.3 * np.array(waves)[:, None].repeat(channels, 1)
    return open_measurements(images.astype(np.float32), axes="NCHW", range=(0, 1))


def measured(problem: Problem, channels: int = 1) -> Array:
    """Six real measurements, (6, C, H, W), in unit intensities."""
    noisy = pictures(channels).simulate(SIGMA, 0, problem)
    return np.stack([noisy.image(i) for i in range(6)])


def opened(values: Array, **options: Any) -> Measurements:
    return open_measurements(values, axes="NCHW", **options)


def fitted(data: Any, problem: Problem) -> Restorer:
    return nediff.fit(data, problem, steps=2, size="tiny", crop=16)


@pytest.mark.parametrize("name", ["inpainting", "demosaicing", "mri"])
def test_values_where_nothing_is_measured_are_refused(name: str) -> None:
    problem, channels = {
        "inpainting": (Problem.inpainting(MASK, SIGMA), 1),
        "demosaicing": (Problem.demosaicing(SIGMA), 3),
        "mri": (Problem.mri(centred_mask(H, W), SIGMA), 1),
    }[name]
    values = measured(problem, channels)
    values[2] += 0.25
    with pytest.raises(NediffError, match=r"#2.* values other than 0 at .* nothing is measured"):
        fitted(opened(values, range=(0, 1)), problem)


def test_what_a_mask_leaves_out_is_not_in_the_range() -> None:
    """As on the command line: zeros that stand for nothing say nothing of the range."""
    problem = Problem.inpainting(MASK, SIGMA)
    counts = MASK * np.rint(1000 + 200 * measured(problem)[:, 0])
    found = fitted(counts.astype(np.uint16), problem).config.data
    assert 900 < found.low < 1100
    assert 1100 < found.high < 1300
    kept = fitted(opened(counts[:, None], range=(900, 1400)), problem).config.data
    assert (kept.low, kept.high) == (900, 1400)


def test_the_range_of_k_space_begins_at_zero() -> None:
    problem = Problem.mri(centred_mask(H, W), SIGMA)
    values = 3 * measured(problem)
    complex_values = values[:, 0] + 1j * values[:, 1]
    found = fitted(complex_values.astype(np.complex64), problem).config.data
    assert found.low == 0
    assert 1.5 < found.high < 4  # of images up to 3 × 0.8
    assert "zero-filled" in found.range_chosen
    kept = fitted(opened(values, range=(0, 3)), problem).config.data
    assert (kept.low, kept.high) == (0, 3)
    with pytest.raises(NediffError, match="begins at 0, since k-space has no offset, not at -1"):
        fitted(opened(values, range=(-1, 3)), problem)
    simulated = opened(np.stack([pictures().image(i) for i in range(6)]), range=(-1, 3))
    with pytest.raises(NediffError, match="begins at 0"):
        fitted(simulated.simulate(SIGMA, 0, problem), problem)


def test_whole_measurements_come_in_batches_of_as_many_pixels_as_crops() -> None:
    """16 crops of 40² pixels are two scans of 128² or, at most, 16 of a small size."""
    for side, scans in ((32, 16), (128, 2), (64, 6)):
        images = np.random.default_rng(0).random((2, side, side), dtype=np.float32)
        problem = Problem.mri(cartesian_mask((side, side), 4, 0), 0.1)
        scan = open_measurements(images, axes="NHW", range=(0, 1)).simulate(0.1, 0, problem)
        config = plan_run(scan, problem, Plan(steps=1), "")
        assert config.training.batch == scans
        assert config.network.kind == "unrolled"  # what does best with this operator
        told = plan_run(scan, problem, Plan(steps=1, batch=5, kind="edm"), "")
        assert (told.training.batch, told.network.kind) == (5, "edm")
    noisy = open_measurements(images, axes="NHW", range=(0, 1))
    config = plan_run(noisy, Problem.denoising(0.1), Plan(steps=1), "")
    assert (config.training.batch, config.network.kind) == (16, "edm")
