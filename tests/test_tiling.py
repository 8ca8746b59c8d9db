"""Large images in parts: the result is that of the whole, whatever the tiles."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from nediff.correction import Correction
from nediff.data import open_measurements
from nediff.networks import build_denoiser, build_spread
from nediff.operators import Colour
from nediff.problem import Problem, random_mask
from nediff.restorer import Restorer
from nediff.sampling import SOLVERS, SamplerSettings
from nediff.tiling import (
    FileCanvas,
    Journal,
    MemoryCanvas,
    Tile,
    in_memory,
    on_disk,
    put,
    tiles_of,
)
from nediff.training.fitting import Plan, plan_run
from nediff.unmeasured import UnmeasuredSpread

SIZE = (131, 150)
"""Not multiples of anything."""
FEW = SamplerSettings(steps=3)
SIGMA = 0.1
TOLERANCE = 2e-5
"""Of float32 sums in another order: values are of order 1, and a hundred layers were passed."""


def lively(network: torch.nn.Module, seed: int = 0) -> None:
    """Weights that let everything through, instead of those that start as zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:
                fan_in = weight[0].numel()
                weight.copy_(torch.randn(weight.shape, generator=generator) / fan_in**0.5)


def picture(channels: int, size: tuple[int, int] = SIZE, seed: int = 0) -> NDArray[np.float32]:
    """Smooth, with a slope, and noisy: the mean of a tile is not that of the image."""
    rows, columns = np.indices(size) / 40
    planes = [np.sin(rows * (1 + c)) * np.cos(columns) / 3 + columns / 4 for c in range(channels)]
    noise = np.random.default_rng(seed).normal(0, SIGMA, (channels, *size))
    return (np.stack(planes) + noise).astype(np.float32)


def restorer(problem: Problem, kind: str | None = None) -> Restorer:
    data = open_measurements(
        picture(problem.measured_channels(problem.channels))[None], axes="NCHW", range=(0, 1)
    )
    config = plan_run(data, problem, Plan(steps=1, size="tiny", kind=kind), "(in memory)")
    denoiser = build_denoiser(config.network)
    lively(denoiser)
    return Restorer(problem, denoiser, config)


def holes() -> Tensor:
    """Single pixels missing, and a hole that is filled from far away."""
    mask = random_mask(0.6, SIZE, 3)
    mask[50:78, 60:85] = 0
    return mask


PROBLEMS = {
    "grey": (Problem.denoising(SIGMA, 1), None),
    "colour": (Problem.denoising(SIGMA, 3), None),
    "homogeneous": (Problem.denoising(SIGMA, 1), "homogeneous"),
    "inpainting": (Problem.inpainting(holes(), SIGMA, 1), None),
    "unrolled": (Problem.inpainting(holes(), SIGMA, 1), "unrolled"),
    "mosaic": (Problem.demosaicing(SIGMA, "GRBG"), None),
    "raw": (Problem.demosaicing(SIGMA, "RGGB", raw=True), None),
}


def whole_and_tiled(name: str, tile: int) -> tuple[Restorer, Restorer, NDArray[np.float32]]:
    problem, kind = PROBLEMS[name]
    whole, tiled = restorer(problem, kind), restorer(problem, kind)
    tiled.tiled_from, tiled.tile = 100, tile
    return whole, tiled, picture(1 if problem.raw else problem.channels)


# --- geometry -------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [7, 64, 131, 500])
def test_tiles_cover_every_pixel_once(side: int) -> None:
    count = np.zeros(SIZE, int)
    for tile in tiles_of(SIZE, side):
        count[tile.rows, tile.columns] += 1
        assert max(tile.height, tile.width) <= side
    assert (count == 1).all()


@pytest.mark.parametrize("step", [1, 4, 32])
def test_a_grown_tile_begins_on_the_grid_and_stays_inside(step: int) -> None:
    for tile in tiles_of(SIZE, 40):
        grown = tile.grown(9, step, SIZE)
        assert grown.top % step == grown.left % step == 0
        for start, length, end in zip(grown.place[:2], grown.place[2:], SIZE, strict=True):
            assert start >= 0
            assert start + length == end or (start + length) % step == 0
        rows, columns = tile.within(grown)
        assert rows.start >= min(9, tile.top)
        assert grown.height - rows.stop >= min(9, SIZE[0] - tile.top - tile.height)
        assert columns.stop - columns.start == tile.width


# --- the whole, in parts --------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_estimate_is_that_of_the_whole(name: str) -> None:
    whole, tiled, y = whole_and_tiled(name, 48)
    expected = whole.restore(y)
    np.testing.assert_allclose(tiled.restore(y), expected, rtol=0, atol=TOLERANCE)
    assert np.abs(expected - y).std() > 100 * TOLERANCE  # the network does something


@pytest.mark.parametrize("solver", SOLVERS)
def test_samples_are_those_of_the_whole(solver: str) -> None:
    whole, tiled, y = whole_and_tiled("colour", 64)
    settings = replace(FEW, solver=solver)
    expected = whole.sample(y, 2, 5, settings=settings)
    drawn = tiled.sample(y, 2, 5, settings=settings)
    np.testing.assert_allclose(drawn, expected, rtol=0, atol=TOLERANCE)
    if solver != "paper":  # which hardly has any spread
        assert np.abs(expected[0] - expected[1]).std() > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["inpainting", "unrolled", "mosaic"])
def test_samples_with_their_spread_and_correction(name: str) -> None:
    """What was not measured gets its noise, and the correction its own, by the place."""
    whole, tiled, y = whole_and_tiled(name, 64)
    spread = build_spread(whole.config.network)
    lively(spread, 1)
    for one in (whole, tiled):
        one.sampler = FEW
        one.unmeasured = UnmeasuredSpread(spread, 0.5)
        one.correction = Correction(1.3, 0.2, FEW)
    expected, drawn = whole.sample(y, 2, [7]), tiled.sample(y, 2, [7])
    np.testing.assert_allclose(drawn, expected, rtol=0, atol=TOLERANCE)
    whole.unmeasured = None
    plain = whole.sample(y, 2, [7])
    whole.correction = None
    assert np.abs(expected - plain).max() > 100 * TOLERANCE
    assert np.abs(plain - whole.sample(y, 2, [7])).max() > 100 * TOLERANCE


def test_images_noisier_than_the_training_and_several_at_once() -> None:
    whole, tiled, _ = whole_and_tiled("grey", 64)
    y = np.stack([picture(1, seed=k) for k in range(2)])
    for sigma in (0.05, [0.05, 0.15]):
        np.testing.assert_allclose(
            tiled.restore(y, sigma), whole.restore(y, sigma), rtol=0, atol=TOLERANCE
        )
    options = {"n": 1, "seed": [3, 4], "sigma": [0.05, 0.15], "settings": FEW}
    np.testing.assert_allclose(
        tiled.sample(y, **options), whole.sample(y, **options), rtol=0, atol=TOLERANCE
    )


def test_a_margin_that_is_too_small_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison detects what it is for: seams, and means of tiles instead of the image."""
    whole, tiled, y = whole_and_tiled("grey", 48)
    expected = whole.restore(y)
    network = type(tiled.denoiser.network)
    monkeypatch.setattr(network, "reach", 8)
    assert np.abs(tiled.restore(y) - expected).max() > 20 * TOLERANCE
    monkeypatch.undo()
    model = "nediff.tiling.passes.TiledDenoiser.mean"
    monkeypatch.setattr(model, lambda self, image: image(self.tiles[0]).mean(dim=(2, 3)))
    assert np.abs(tiled.restore(y) - expected).max() > 20 * TOLERANCE


def test_networks_that_are_not_local_come_near() -> None:
    """Standardised by the whole image: no margin is enough, and the difference is bounded."""
    problem = Problem.denoising(SIGMA, 1)
    whole, tiled = restorer(problem, "standardised"), restorer(problem, "standardised")
    tiled.tiled_from, tiled.tile = 100, 64
    assert whole.denoiser.reach is None
    y = picture(1)
    difference = np.abs(tiled.restore(y) - whole.restore(y))
    assert TOLERANCE < difference.std() < SIGMA


def test_correlated_noise_is_the_same_wherever_tiles_meet() -> None:
    """Not that of the whole, which goes round at the borders, but of the same law."""
    frequency = np.array([0.0, 0.1, 0.25, 0.5])
    power = np.array([4.0, 3.0, 1.0, 0.2])[:, None, None] * np.eye(1)
    problem = Problem.denoising(SIGMA, 1, Colour.of(frequency, power)[0])
    results = []
    for side in (48, 75):
        tiled = restorer(problem)
        tiled.tiled_from, tiled.tile = 100, side
        results.append(tiled.sample(picture(1), 1, 3, settings=FEW)[0])
    # filtered to 64 pixels around each tile, so not exactly the same
    assert np.abs(results[0] - results[1]).std() < 0.02 * SIGMA


# --- nothing is lost ------------------------------------------------------------------------------


class Killed(Exception):
    """In the middle of a unit, after which some of it is written."""


@pytest.mark.parametrize("finishes", [False, True])
def test_work_that_is_killed_again_and_again_comes_to_the_same(
    tmp_path: Path, finishes: bool
) -> None:
    one = restorer(Problem.denoising(SIGMA, 1))
    one.tile, one.sampler = 64, FEW
    if finishes:
        one.correction = Correction(1.2, 0.1, FEW)
    y = torch.from_numpy(picture(1))[None]
    level = torch.tensor([SIGMA])

    def attempt(folder: Path | None, patience: int) -> tuple[MemoryCanvas, MemoryCanvas]:
        """Estimate and sample number 3; killed after writing so many rectangles."""
        left = patience
        canvases = in_memory() if folder is None else on_disk(folder)

        def write(canvas: object, tile: Tile, values: Tensor) -> None:
            nonlocal left
            put(canvas, tile, values)  # type: ignore[arg-type]
            left -= 1
            if left == 0:
                raise Killed

        journal = Journal(None if folder is None else folder / "done")
        image = one.large(lambda t: y[..., t.rows, t.columns], SIZE, level, FEW, canvases, journal)
        shape = (1, *SIZE)
        outs = [canvases("restored", shape), canvases("sample", shape)]
        image.restore(partial(write, outs[0]))
        image.sample(3, 9, partial(write, outs[1]))
        everything = Tile(0, 0, *SIZE)
        a, b = (MemoryCanvas(out.read(everything)) for out in outs)
        return a, b

    expected = attempt(None, -1)
    deaths = 0
    while True:
        try:
            found = attempt(tmp_path, 1 + deaths % 3)
        except Killed:
            deaths += 1
            assert deaths < 100
            continue
        break
    assert deaths > 5
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a.array, b.array)


def test_a_canvas_on_disk_is_one_in_memory(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(2, 30, 41)).astype(np.float32)
    disk, memory = FileCanvas(tmp_path / "a", (2, 30, 41)), MemoryCanvas(np.zeros_like(values))
    for tile in tiles_of((30, 41), 13):
        part = values[:, tile.rows, tile.columns]
        disk.write(tile, part)
        memory.write(tile, part)
    for tile in (Tile(0, 0, 30, 41), Tile(5, 7, 20, 30)):
        np.testing.assert_array_equal(disk.read(tile), memory.read(tile))
    again = FileCanvas(tmp_path / "a", (2, 30, 41))
    np.testing.assert_array_equal(again.read(Tile(0, 0, 30, 41)), values)
