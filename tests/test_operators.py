"""What every linear operator owes: adjoint, crops, turns, batches, fill, noise (METHOD.md §1-§3).

All images are random and all values of a result are compared, so a pixel out of place fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import torch
from torch import Tensor

from nediff.config import DataConfig, NetworkConfig, RunConfig, TrainingConfig
from nediff.errors import NediffError
from nediff.filling import fill_missing
from nediff.operators import (
    Convolution,
    Fourier,
    Identity,
    LinearOperator,
    Mask,
    Physics,
    turn,
)
from nediff.problem import PATTERNS, Problem, cartesian_mask, random_mask, stack_operators
from nediff.recipes import recipe_named
from nediff.runs import (
    OPERATOR_FILE,
    describe_operator,
    load_config,
    load_problem,
    save_config,
    save_problem,
    write_tensors,
)
from tests.instruments import (
    Case,
    centred_mask,
    deepinv_cases,
    normals,
    own_cases,
    some_kernel,
    some_mask,
)

OWN = own_cases()
CASES = OWN | deepinv_cases()
every_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))

BATCH = 3  # as many as the cases with one mask or kernel per image have


def assert_near(found: Tensor, expected: Tensor, case: Case) -> None:
    """Equal up to rounding, in units of the largest value."""
    assert found.shape == expected.shape
    scale = expected.abs().max().clamp_min(1e-3)
    assert (found - expected).abs().max() < 10 * case.tolerance * scale


# --- linear algebra -------------------------------------------------------------------------------


@every_case
def test_the_adjoint_is_the_adjoint(case: Case) -> None:
    x, y = case.images(BATCH), case.measurements(BATCH)
    ax, aty = case.operator.A(x), case.operator.A_adjoint(y)
    assert ax.shape == y.shape
    assert aty.shape == x.shape
    left, right = (ax * y).flatten(1).sum(1), (x * aty).flatten(1).sum(1)
    size = ax.flatten(1).norm(dim=1) * y.flatten(1).norm(dim=1)
    assert ((left - right).abs() < case.tolerance * size).all()
    assert (left.abs() > 1e-3 * size).any()  # neither side is just zero


@every_case
def test_operator_adjoint_and_fill_are_linear(case: Case) -> None:
    for function, one, other in (
        (case.operator.A, case.images(BATCH, 1), case.images(BATCH, 2)),
        (case.operator.A_adjoint, case.measurements(BATCH, 1), case.measurements(BATCH, 2)),
        (case.operator.fill, case.measurements(BATCH, 1), case.measurements(BATCH, 2)),
        (case.operator.mask_noise, case.measurements(BATCH, 1), case.measurements(BATCH, 2)),
    ):
        together = function(0.3 * one - 1.7 * other)
        assert_near(together, 0.3 * function(one) - 1.7 * function(other), case)


@every_case
def test_a1_is_the_measurement_of_a_constant(case: Case) -> None:
    problem = Problem(0.1, case.shape[0], case.operator)
    x = case.images(BATCH)
    y = problem.A(x)
    a1 = problem.A1(y)
    assert_near(problem.A(x + 0.7), y + 0.7 * a1, case)
    assert a1.abs().max() > 0.1


def test_a1_of_each_kind() -> None:
    """In closed form: the mask, the sum of the kernel, the centre of k-space."""
    y = torch.zeros(2, 3, 6, 8)
    mask = some_mask((1, 3, 6, 8))
    assert torch.equal(Problem(0.1, 3, Mask(mask)).A1(y), mask.expand(2, -1, -1, -1))
    bayer = Problem.demosaicing(0.1, "GRBG")
    first = bayer.A1(y)[0, :, :2, :2]  # rows of R, of G, of B
    assert first.tolist() == [[[0, 1], [0, 0]], [[1, 0], [0, 1]], [[0, 0], [1, 0]]]
    blur = Problem(0.1, 3, Convolution(2 * some_kernel(3, 3), 2))
    torch.testing.assert_close(blur.A1(y), torch.full_like(y, 2.0))
    kspace = Problem.mri(centred_mask(6, 8), 0.1).A1(torch.zeros(1, 2, 6, 8))
    expected = torch.zeros(1, 2, 6, 8)
    expected[:, :, 3, 4] = math.sqrt(48)
    torch.testing.assert_close(kspace, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_convolution_is_that_of_scipy(stride: int) -> None:
    """A kernel without symmetry: correlating, or striding from another corner, would show."""
    kernels = [some_kernel(4, 3, seed) for seed in range(BATCH)]
    operators = [Convolution(kernel, stride) for kernel in kernels]
    x = normals((BATCH, 2, 10, 12))
    found = stack_operators(operators).A(x)
    for i, kernel in enumerate(kernels):
        for channel in range(2):
            image = x[i, channel].numpy()
            full = scipy.signal.convolve2d(image, kernel.double().numpy(), mode="valid")
            expected = torch.from_numpy(full[::stride, ::stride].copy())
            torch.testing.assert_close(found[i, channel], expected)
            alone = operators[i].A(x[i : i + 1])[0, channel]
            torch.testing.assert_close(alone, expected)


def test_super_resolution_averages_blocks() -> None:
    x = normals((2, 1, 6, 9))
    found = Problem.super_resolution(3, 0.1).A(x)
    torch.testing.assert_close(found, torch.nn.functional.avg_pool2d(x, 3))


@pytest.mark.parametrize("size", [(6, 8), (7, 5)])
def test_fourier_is_that_of_numpy_with_zero_frequency_in_the_middle(size: tuple[int, int]) -> None:
    mask = centred_mask(*size)
    x = normals((2, 2, *size))
    z = x[:, 0].numpy() + 1j * x[:, 1].numpy()
    axes = (-2, -1)
    spectrum = np.fft.fft2(np.fft.ifftshift(z, axes=axes), norm="ortho")
    spectrum = np.fft.fftshift(spectrum, axes=axes) * mask.numpy()
    found = Fourier(mask).A(x).numpy()
    np.testing.assert_allclose(found[:, 0], spectrum.real, atol=1e-12)
    np.testing.assert_allclose(found[:, 1], spectrum.imag, atol=1e-12)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_bayer_measures_the_colour_its_name_says(pattern: str) -> None:
    colours = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1).expand(1, 3, 5, 4)
    mosaic = Problem.demosaicing(0.1, pattern).A(colours).sum(1)[0]
    names = ["".join(" RGB"[int(v)] for v in row) for row in mosaic.tolist()]
    even, odd = pattern[:2] * 2, pattern[2:] * 2
    assert names == [even, odd, even, odd, even]


@every_case
def test_the_step_is_about_one_over_the_squared_norm(case: Case) -> None:
    """A gradient step x + step Aᵀ(y − Ax) must not overshoot, nor do next to nothing."""
    x = case.images(BATCH)
    for _ in range(60):  # power iteration; converges from below
        x = case.operator.A_adjoint(case.operator.A(x / x.norm()))
    assert 0.5 < case.operator.step * x.norm() < 1.02


# --- crops, turns, batches ------------------------------------------------------------------------

CROPPABLE = {name: case for name, case in CASES.items() if case.operator.crop_step is not None}
TURNABLE = {name: case for name, case in CASES.items() if case.operator.turns}


@pytest.mark.parametrize("case", CROPPABLE.values(), ids=list(CROPPABLE))
def test_a_crop_of_a_measurement_is_a_measurement_of_a_crop(case: Case) -> None:
    operator, x = case.operator, case.images(BATCH)
    y = operator.A(x)
    step = operator.crop_step or 1
    height, width = y.shape[-2] - step, y.shape[-1] - step
    assert operator.image_size(*y.shape[-2:]) == (x.shape[-2], x.shape[-1])
    assert operator.measured_size(*x.shape[-2:]) == (y.shape[-2], y.shape[-1])
    for top, left in ((0, 0), (step, 0), (0, step), (step, step)):
        i, j = operator.image_corner(top, left)
        rows, columns = operator.image_size(height, width)
        window = operator.window(top, left, height, width)
        found = window.A(x[..., i : i + rows, j : j + columns])
        assert_near(found, y[..., top : top + height, left : left + width], case)
    if not isinstance(operator, (Identity, Convolution)):  # which are the same everywhere
        wrong = operator.window(0, 0, height, width).A(x[..., 1 : 1 + height, 1 : 1 + width])
        assert (wrong - y[..., 1 : 1 + height, 1 : 1 + width]).abs().max() > 0.1


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_mosaic_has_a_window_at_every_offset(pattern: str) -> None:
    """Training crops it at even ones only, but simulated noise and tiles may begin anywhere."""
    bayer = Problem.demosaicing(0.1, pattern).operator
    x = normals((1, 3, 9, 11))
    y = bayer.A(x)
    for top, left in ((0, 2), (2, 4), (1, 0), (0, 3), (3, 5)):
        cut = (..., slice(top, top + 4), slice(left, left + 5))
        assert torch.equal(bayer.window(top, left, 4, 5).A(x[cut]), y[cut])
    assert bayer.crop_step == 2


@pytest.mark.parametrize("case", TURNABLE.values(), ids=list(TURNABLE))
@pytest.mark.parametrize("k", range(8))
def test_a_turned_measurement_is_a_measurement_of_the_turned_image(case: Case, k: int) -> None:
    operator, x = case.operator, case.images(BATCH)
    if isinstance(operator, Mask) and operator.periodic:
        # the corner of a turned odd mosaic is another pixel of its pattern: turn the window
        operator = operator.window(0, 0, *case.shape[1:])
    expected = turn(operator.A(x), k)
    assert_near(operator.turned(k).A(turn(x, k)), expected, case)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("k", range(8))
def test_a_turned_mosaic_of_even_size_is_a_mosaic(pattern: str, k: int) -> None:
    bayer = Problem.demosaicing(0.1, pattern).operator
    x = normals((1, 3, 6, 8))
    assert torch.equal(bayer.turned(k).A(turn(x, k)), turn(bayer.A(x), k))


def test_the_eight_turns_are_all_different_and_a_group() -> None:
    x = normals((1, 1, 3, 3))
    turned = [turn(x, k) for k in range(8)]
    for a in range(8):
        assert [torch.equal(turned[a], other) for other in turned].count(True) == 1
        for b in range(8):
            both = turn(turned[a], b)
            assert any(torch.equal(both, other) for other in turned)


def families() -> dict[str, tuple[list[LinearOperator], tuple[int, int, int]]]:
    """Operators of single images that one batch may hold together."""
    bayer = Problem.demosaicing(0.1).operator
    mask = Mask(some_mask((1, 2, 12, 12)))
    blur = Convolution(some_kernel(3, 3))
    strided = Convolution(some_kernel(4, 4), 2)
    return {
        "windows of a mask": ([mask.window(i, 2 * i, 6, 7) for i in range(3)], (2, 6, 7)),
        "turned masks": ([mask.turned(k) for k in (0, 3, 6)], (2, 12, 12)),
        "windows of a mosaic": (
            [bayer.window(*o, 5, 6) for o in ((0, 0), (1, 0), (0, 3))],
            (3, 5, 6),
        ),
        "turned mosaics": ([bayer.turned(k) for k in (0, 1, 5)], (3, 6, 8)),
        "turned kernels": ([blur.turned(k) for k in (0, 3, 6)], (2, 7, 8)),
        "turned strided kernels": ([strided.turned(k) for k in (0, 3, 6)], (2, 10, 8)),
        "one kernel": ([blur, blur, blur], (2, 7, 8)),
        "one fourier": ([Fourier(centred_mask(6, 8))] * 3, (2, 6, 8)),
        "identity": ([Identity()] * 3, (2, 6, 8)),
    }


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("family", list(families()))
def test_a_stack_is_its_operators_one_by_one(family: str, times: int) -> None:
    """Also when the batch holds the images twice over, as the Monte Carlo divergence does."""
    operators, shape = families()[family]
    together = stack_operators(operators)
    x = normals((3 * times, *shape))
    y = normals(tuple(together.A(x).shape), 1)
    methods: list[tuple[Callable[[LinearOperator], Callable[[Tensor], Tensor | None]], Tensor]] = [
        (lambda o: o.A, x),
        (lambda o: o.A_adjoint, y),
        (lambda o: o.fill, y),
        (lambda o: o.mask_noise, y),
        (lambda o: o.known, x),
        (lambda o: o.guide, x),
    ]
    for method, values in methods:
        found = method(together)(values)
        for i, value in enumerate(values):
            alone = method(operators[i % 3])(value[None])
            if alone is None:
                assert found is None
            else:
                assert found is not None
                torch.testing.assert_close(found[i], alone[0])
    if len({id(o) for o in operators}) == 3:  # and it matters which is whose
        assert (together.A(x) - together.A(x.flip(0)).flip(0)).abs().max() > 0.1


def test_kernels_of_different_shape_are_never_turned_into_one_batch() -> None:
    """A turned oblong kernel needs an image of another size, so it is not turned."""
    assert not Convolution(some_kernel(4, 3)).turns
    assert Convolution(some_kernel(4, 4)).turns
    assert "turns" in (Convolution(some_kernel(4, 3)).group, Convolution(some_kernel(4, 4)).group)


def test_a_window_of_an_operator_keeps_its_kind_and_group() -> None:
    for operator in (
        Problem.demosaicing(0.1).operator,
        Problem.inpainting(some_mask((8, 8)), 0.1).operator,
        Problem.blur(some_kernel(3, 3), 0.1).operator,
    ):
        window = operator.window(2, 2, 4, 4)
        for other in (window, window.turned(1), window.stack([window.turned(2)]), window.to("cpu")):
            assert (other.kind, other.group) == (operator.kind, operator.group)


# --- the fill -------------------------------------------------------------------------------------


@every_case
def test_the_fill_commutes_with_rescaling(case: Case) -> None:
    """fill(αy + μA1) = α fill(y) + μ1: its weights sum to one."""
    problem = Problem(0.1, case.shape[0], case.operator)
    y = case.measurements(BATCH)
    found = case.operator.fill(0.3 * y + 0.9 * problem.A1(y))
    assert found.shape == (BATCH, *case.shape)
    assert_near(found, 0.3 * case.operator.fill(y) + 0.9, case)


def test_without_the_centre_of_k_space_constants_are_lost() -> None:
    """Which is why such a mask is refused."""
    mask = centred_mask(6, 8)
    mask[3, 4] = 0
    problem = Problem(0.1, 2, Fourier(mask))
    y = torch.zeros(1, 2, 6, 8)
    assert problem.A1(y).abs().max() < 1e-5
    assert (problem.operator.fill(problem.A1(y)) - 1).abs().min() > 0.9
    with pytest.raises(NediffError, match="leaves out the centre"):
        Problem.mri(mask, 0.1)


MASKS = {name: case for name, case in OWN.items() if isinstance(case.operator, Mask)}


@pytest.mark.parametrize("case", MASKS.values(), ids=list(MASKS))
def test_the_fill_keeps_what_is_measured(case: Case) -> None:
    """And is a mean of measured pixels elsewhere: within their range, channel by channel."""
    y = case.operator.mask_noise(case.measurements(BATCH))
    known = case.operator.known(y)
    filled = case.operator.fill(y)
    assert torch.equal(known * filled, y)
    measured = torch.where(known > 0, y, math.nan).flatten(2)
    low = measured.nan_to_num(math.inf).min(2).values[..., None, None]
    high = measured.nan_to_num(-math.inf).max(2).values[..., None, None]
    assert ((filled >= low - 1e-9) & (filled <= high + 1e-9)).all()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_fill_of_a_mosaic_is_bilinear(pattern: str) -> None:
    """Exact for a linear ramp, one pixel from the border on."""
    row, column = torch.meshgrid(torch.arange(8.0), torch.arange(10.0), indexing="ij")
    ramp = torch.stack([row + 2 * column, 3 * row - column, 1 - row]).double()[None]
    bayer = Problem.demosaicing(0.1, pattern).operator
    found = bayer.fill(bayer.A(ramp))
    torch.testing.assert_close(found[..., 1:-1, 1:-1], ramp[..., 1:-1, 1:-1])


@pytest.mark.parametrize("size", [(32, 32), (31, 17), (2, 64), (1, 40), (33, 1)])
@pytest.mark.parametrize("where", ["corner", "middle"])
def test_one_measured_pixel_fills_the_whole_image(size: tuple[int, int], where: str) -> None:
    mask = torch.zeros(1, 1, *size, dtype=torch.float64)
    i, j = (0, 0) if where == "corner" else (size[0] // 2, size[1] // 2)
    mask[..., i, j] = 1
    torch.testing.assert_close(fill_missing(0.7 * mask, mask), torch.full_like(mask, 0.7))


def test_a_big_hole_is_filled_from_around_it() -> None:
    """Left of the hole 0, right of it 1: what is nearer to one side is nearer in value."""
    y = torch.zeros(1, 1, 40, 40, dtype=torch.float64)
    y[..., 20:] = 1
    mask = torch.ones_like(y)
    mask[..., 4:36, 8:32] = 0
    filled = fill_missing(mask * y, mask)
    hole = filled[0, 0, 4:36, 8:32]
    assert torch.equal(filled[mask > 0], y[mask > 0])
    assert hole.min() >= 0
    assert hole.max() <= 1
    assert hole[:, :4].mean() < 0.1
    assert hole[:, -4:].mean() > 0.9


def test_values_where_nothing_is_measured_are_not_looked_at() -> None:
    mask = some_mask((1, 1, 9, 9)).double()
    y = normals((1, 1, 9, 9))
    torch.testing.assert_close(fill_missing(y, mask), fill_missing(mask * y, mask))


def test_the_fill_of_a_blur_lies_over_its_image() -> None:
    """A ramp stays a ramp, up to the half pixel by which kernel and stride may differ in parity."""
    for size, stride in ((3, 1), (5, 1), (4, 2), (3, 3), (2, 2), (5, 3)):
        operator = Convolution(torch.full((size, size), 1 / size**2).double(), stride)
        rows, columns = operator.image_size(8, 9)
        ramp = torch.arange(columns).double().expand(1, 1, rows, columns)
        filled = operator.fill(operator.A(ramp))
        assert filled.shape == ramp.shape
        inner = slice(size + stride, columns - size - stride)
        torch.testing.assert_close(filled[..., inner], ramp[..., inner])


@every_case
def test_the_frame_of_an_image_lies_over_its_measurement(case: Case) -> None:
    """Where the measurement is an image itself, that of a fill is the measurement."""
    operator, y = case.operator, case.measurements(BATCH)
    framed = operator.frame(operator.fill(y), *y.shape[-2:])
    if not isinstance(operator, Convolution):
        assert framed.shape[-2:] == case.shape[1:]
        return
    whole = [min(n * operator.stride, k) for n, k in zip(y.shape[-2:], case.shape[1:], strict=True)]
    assert list(framed.shape[-2:]) == whole
    if operator.stride == 1:
        torch.testing.assert_close(framed, y, rtol=1e-6, atol=1e-6)  # the kernels sum to one


# --- noise and sizes ------------------------------------------------------------------------------


@every_case
def test_noise_is_where_something_is_measured(case: Case) -> None:
    """Zero exactly where A gives zero for every image, unchanged elsewhere; m counts it."""
    operator, noise = case.operator, case.measurements(BATCH)
    masked = operator.mask_noise(noise)
    reached = torch.stack([operator.A(case.images(BATCH, s)) != 0 for s in range(4)]).any(0)
    assert torch.equal(masked, torch.where(reached, noise, torch.zeros_like(noise)))
    problem = Problem(0.1, case.shape[0], operator)
    assert torch.equal(problem.measured(noise), reached.flatten(1).sum(1).to(noise.dtype))


@pytest.mark.parametrize("case", MASKS.values(), ids=list(MASKS))
def test_guide_and_known_show_the_mask(case: Case) -> None:
    x = case.images(BATCH)
    known, guide = case.operator.known(x), case.operator.guide(x)
    assert torch.equal(known, case.operator.mask_noise(torch.ones_like(x)))
    assert guide is not None
    assert guide.shape == (BATCH, case.operator.guides, *x.shape[-2:])
    assert torch.equal(guide.expand_as(x), known)


def test_known_pixels_of_the_others() -> None:
    x = normals((2, 2, 6, 8))
    assert torch.equal(Identity().known(x), torch.ones_like(x))
    for operator in (Convolution(some_kernel(3, 3)), Fourier(centred_mask(6, 8))):
        assert torch.equal(operator.known(x), torch.zeros_like(x))
        assert operator.guide(x) is None
        assert operator.guides == 0


def test_sizes_that_an_instrument_does_not_give_are_refused() -> None:
    mask = some_mask((6, 8))
    for problem, fits, what in (
        (Problem.inpainting(mask, 0.1), (6, 8), "mask"),
        (Problem.mri(centred_mask(6, 8), 0.1), (6, 8), "mask"),
        (Problem(0.1, 2, CASES["deepinv downsampling"].operator), (6, 8), "operator"),
    ):
        assert problem.operator.fixed_size == fits
        problem.check_size(*fits)
        with pytest.raises(NediffError, match=f"8 × 7 pixels does not fit the {what}.* 8 × 6"):
            problem.check_size(7, 8)
        with pytest.raises(NediffError, match="6 × 8 pixels"):  # not the other way round
            problem.check_size(8, 6)
    for problem in (
        Problem.denoising(0.1),
        Problem.demosaicing(0.1),
        Problem.blur(some_kernel(3, 3), 0.1),
        Problem.super_resolution(2, 0.1),
    ):
        assert problem.operator.fixed_size is None
        problem.check_size(7, 9)
    window = Problem.demosaicing(0.1).operator.window(0, 0, 4, 6)
    assert window.fixed_size == (4, 6)


def test_image_and_measurement_have_their_own_channels() -> None:
    assert Problem.demosaicing(0.1).measured_channels(3) == 3
    assert Problem.demosaicing(0.1, raw=True).measured_channels(3) == 1
    assert Problem.mri(centred_mask(6, 8), 0.1).measured_channels(1) == 2
    grey = normals((1, 1, 6, 8))
    two = Fourier(centred_mask(6, 8)).as_image(grey)
    assert torch.equal(two[:, :1], grey)
    assert not two[:, 1].any()


def test_a_raw_mosaic_is_lifted_to_the_masked_image() -> None:
    raw, spread = Problem.demosaicing(0.1, "GBRG", raw=True), Problem.demosaicing(0.1, "GBRG")
    x = normals((2, 3, 6, 7))
    y = spread.A(x)
    assert torch.equal(raw.lift(y.sum(1, keepdim=True)), y)
    assert torch.equal(spread.lift(y), y)
    inpainting = Problem.inpainting(some_mask((6, 7)), 0.1, channels=3)
    assert torch.equal(inpainting.lift(x), inpainting.A(x))  # what the mask leaves out goes


@pytest.mark.parametrize("name", ["inpainting", "demosaicing", "raw", "blur", "stride", "mri"])
def test_windows_measured_one_by_one_make_the_measurement(name: str) -> None:
    """`measure` and `mask`, which simulate data, for a window anywhere."""
    problem = {
        "inpainting": Problem.inpainting(some_mask((12, 10)), 0.1),
        "demosaicing": Problem.demosaicing(0.1),
        "raw": Problem.demosaicing(0.1, raw=True),
        "blur": Problem.blur(some_kernel(3, 2), 0.1),
        "stride": Problem.super_resolution(2, 0.1, kernel=some_kernel(4, 4)),
        "mri": Problem.mri(centred_mask(12, 10), 0.1),
    }[name]
    channels = problem.channels if name != "mri" else 1
    picture = normals((channels, 12, 10)).float().numpy()

    def read(top: int, left: int, height: int, width: int) -> np.ndarray:
        window = picture[:, top : top + height, left : left + width]
        assert window.shape[1:] == (height, width)
        return window

    height, width = problem.measured_size(12, 10)
    whole = problem.measure(read, 0, 0, height, width)
    assert whole.shape == (problem.measured_channels(channels), height, width)
    noise = normals(whole.shape).float().numpy()
    masked = problem.mask(noise, 0, 0)
    expected = problem.operator.A(problem.operator.as_image(torch.from_numpy(picture)[None]))[0]
    if name == "raw":
        expected = expected.sum(0, keepdim=True)
        assert np.array_equal(masked, noise)
    np.testing.assert_allclose(whole, expected.numpy(), atol=1e-6)
    if name != "mri":  # k-space has no windows
        part = problem.measure(read, 1, 2, height - 2, width - 3)
        np.testing.assert_allclose(part, whole[:, 1 : height - 1, 2 : width - 1], atol=1e-6)
        cut = problem.mask(noise[:, 1:, 2:], 1, 2)
        assert np.array_equal(cut, masked[:, 1:, 2:])


# --- equality, files ------------------------------------------------------------------------------


def problems() -> dict[str, Problem]:
    return {
        "denoising": Problem.denoising(0.1, 2),
        "inpainting": Problem.inpainting(some_mask((8, 9)), 0.1, 2),
        "demosaicing": Problem.demosaicing(0.1, "BGGR"),
        "raw": Problem.demosaicing(0.1, "GBRG", raw=True),
        "blur": Problem.blur(some_kernel(3, 4), 0.1, 2),
        "super_resolution": Problem.super_resolution(3, 0.1, 1, some_kernel(5, 5)),
        "mri": Problem.mri(centred_mask(8, 9), 0.1),
        "physics": Problem(0.1, 2, CASES["deepinv inpainting"].operator),
    }


def test_operators_are_equal_if_they_measure_the_same() -> None:
    again = problems()
    for name, problem in problems().items():
        for other, candidate in again.items():
            assert (problem == candidate) == (name == other)
    kernel = some_kernel(3, 3)
    assert Convolution(kernel) == Convolution(kernel.clone())
    assert Convolution(kernel) != Convolution(kernel, 2)
    assert Convolution(kernel) != Convolution(kernel.T)
    assert Mask(some_mask((1, 1, 4, 4))) != Mask(some_mask((1, 1, 4, 5)))
    assert Problem.demosaicing(0.1, "RGGB") != Problem.demosaicing(0.1, "BGGR")
    assert Identity() == Identity()
    assert Identity() != Fourier(centred_mask(4, 4))
    assert Identity() != "denoising"


def test_two_physics_of_one_shape_are_not_the_same() -> None:
    from deepinv.physics import Inpainting

    one, other = (
        Physics(Inpainting(img_size=(1, 4, 4), mask=some_mask((1, 4, 4), seed=s)), (1, 4, 4))
        for s in (1, 2)
    )
    assert one != other
    assert one == Physics(one.physics, (1, 4, 4))


def run_config(problem: Problem) -> RunConfig:
    measured = 1 if problem.raw else problem.operator.measured_channels(problem.channels)
    return RunConfig(
        version="0",
        data=DataConfig(
            source="test",
            low=0,
            high=1,
            range_chosen="given",
            channels=measured,
            images=1,
            sigma=problem.sigma,
        ),
        operator=describe_operator(problem),
        network=NetworkConfig(channels=problem.channels, sigma_data=0.2),
        recipe=recipe_named("default", problem.kind),
        training=TrainingConfig(steps=1, crop=8),
    )


@pytest.mark.parametrize("name", list(problems()))
def test_the_instrument_travels_with_the_run(name: str, tmp_path: Path) -> None:
    problem = problems()[name]
    save_problem(tmp_path, problem)
    save_config(tmp_path, run_config(problem))
    config = load_config(tmp_path)
    physics = problem.operator.physics if isinstance(problem.operator, Physics) else None
    loaded = load_problem(tmp_path, config, physics)
    assert loaded == problem
    assert (loaded.kind, loaded.raw, loaded.channels) == (
        problem.kind,
        problem.raw,
        loaded.channels,
    )
    like = CASES["deepinv inpainting"] if name == "physics" else None
    x = like.images(2) if like else normals((2, problem.channels, 8, 9))
    assert torch.equal(loaded.A(x), problem.A(x))
    assert (tmp_path / OPERATOR_FILE).exists() == (name not in ("denoising", "physics"))


def test_a_physics_must_be_given_again(tmp_path: Path) -> None:
    problem = problems()["physics"]
    with pytest.raises(NediffError, match=r"load it in Python with nediff.load\(folder, physics="):
        load_problem(tmp_path, run_config(problem))


def bayer_mask() -> Tensor:
    return Problem.demosaicing(0.1).operator.arrays()["mask"]


@pytest.mark.parametrize(
    ("name", "tensors", "sentence"),
    [
        ("inpainting", {"kernel": torch.ones(3, 3)}, "the operator .*'mask'"),
        ("inpainting", {"mask": torch.ones(6, 8)}, r"a mask of shape \(6, 8\)"),
        ("demosaicing", {"mask": torch.ones(2, 3, 2, 2)}, r"a mask of shape \(2, 3, 2, 2\)"),
        ("blur", {"mask": torch.ones(1, 2, 6, 8)}, "the operator .*'kernel'"),
        ("blur", {"kernel": torch.ones(1, 1, 3, 3)}, r"a kernel of shape \(1, 1, 3, 3\)"),
        ("super_resolution", {"kernel": torch.ones(3)}, r"a kernel of shape \(3,\)"),
        ("mri", {"mask": torch.ones(1, 1, 6, 8)}, r"a mask of shape \(1, 1, 6, 8\)"),
        ("inpainting", {"mask": torch.full((1, 2, 8, 9), math.nan)}, "other values than 0 and 1"),
        ("inpainting", {"mask": torch.full((1, 2, 8, 9), 0.5)}, "other values than 0 and 1"),
        ("inpainting", {"mask": torch.zeros(1, 2, 8, 9)}, "zero everywhere"),
        ("inpainting", {"mask": torch.ones(1, 3, 8, 9)}, r"\(1, 3, 8, 9\) for 2 channel"),
        ("inpainting", {"mask": torch.ones(1, 2, 8, 7)}, "7 × 8 pixels for crops of 8"),
        ("demosaicing", {"mask": torch.ones(1, 3, 2, 2)}, "no Bayer pattern"),
        ("demosaicing", {"mask": bayer_mask().repeat(1, 1, 2, 1)}, "no Bayer pattern"),
        ("demosaicing", {"mask": bayer_mask()[:, :1]}, r"\(1, 1, 2, 2\) for 3 channel"),
        ("mri", {"mask": torch.full((8, 9), math.nan)}, "other values than 0 and 1"),
        ("mri", {"mask": torch.full((8, 9), -1.0)}, "other values than 0 and 1"),
        ("blur", {"kernel": torch.tensor([[1.0, math.nan]])}, "not finite or has no positive sum"),
        ("blur", {"kernel": torch.tensor([[1.0, math.inf]])}, "not finite or has no positive sum"),
        ("blur", {"kernel": torch.tensor([[1.0, -1.0]])}, "not finite or has no positive sum"),
    ],
)
def test_an_operator_file_of_another_run_is_refused(
    name: str, tensors: dict[str, Tensor], sentence: str, tmp_path: Path
) -> None:
    problem = problems()[name]
    write_tensors(tmp_path / OPERATOR_FILE, tensors)
    with pytest.raises(NediffError, match=r"operator\.safetensors does not fit.*" + sentence):
        load_problem(tmp_path, run_config(problem))


def test_a_broken_or_missing_operator_file_is_refused(tmp_path: Path) -> None:
    problem = problems()["inpainting"]
    config, path = run_config(problem), tmp_path / OPERATOR_FILE
    with pytest.raises(NediffError, match="is missing"):
        load_problem(tmp_path, config)
    save_problem(tmp_path, problem)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with pytest.raises(NediffError, match="is corrupt"):
        load_problem(tmp_path, config)
    path.write_bytes(b"not a tensor in sight")
    with pytest.raises(NediffError, match="is corrupt"):
        load_problem(tmp_path, config)
    path.write_bytes(whole)
    assert load_problem(tmp_path, config) == problem


# --- what the constructors refuse, and masks by number --------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Problem.inpainting(torch.zeros(4, 4), 0.1), "zero everywhere"),
        (lambda: Problem.inpainting(torch.ones(2, 4, 4), 0.1, 3), r"\(2, 4, 4\) does not fit"),
        (lambda: Problem.inpainting(torch.ones(4), 0.1), "does not fit images"),
        (lambda: Problem.inpainting(np.ones((1, 1, 4, 4)), 0.1), "does not fit images"),
        (lambda: Problem.demosaicing(0.1, "RGBG"), "no Bayer pattern 'RGBG'; there are RGGB"),
        (lambda: Problem.blur(torch.ones(3), 0.1), r"shape \(K, K'\), not \(3,\)"),
        (lambda: Problem.blur([[1.0, math.nan]], 0.1), "finite"),
        (lambda: Problem.blur([[1.0, -1.0]], 0.1), "positive sum"),
        (lambda: Problem.blur(np.zeros((2, 2)), 0.1), "positive sum"),
        (lambda: Problem.super_resolution(1, 0.1), "2 or more, not 1"),
        (lambda: Problem.super_resolution(2, 0.1, kernel=np.ones(4)), r"\(K, K'\)"),
        (lambda: Problem.mri(torch.ones(1, 4, 4), 0.1), r"shape \(H, W\)"),
        (lambda: Problem.mri([1, 0, 0, 1], 0.1), "leaves out the centre"),
        (lambda: Problem.mri(torch.ones(4, 4), 0.1, height=6), "of 4 rows is not 6 high"),
        (lambda: Problem.mri(torch.ones(4), 0.1, height=0), r"shape \(H, W\)"),
        (lambda: Problem.from_physics(None, 0.1, (1, 4, 4)), "cannot measure an image"),
        (
            lambda: Problem.from_physics(
                CASES["deepinv inpainting"].operator.physics,  # type: ignore[attr-defined]
                0.1,
                (2, 5, 5),
            ),
            r"cannot measure an image of shape \(2, 5, 5\)",
        ),
        (lambda: random_mask(0.0, (4, 4), 0), "between 0 and 1, not 0.0"),
        (lambda: random_mask(1.0, (4, 4), 0), "between 0 and 1, not 1.0"),
    ],
)
def test_what_is_no_instrument_is_refused(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(NediffError, match=sentence):
        make()


def test_a_physics_with_a_measurement_of_another_shape_is_refused() -> None:
    class Flat:
        def A(self, x: Tensor) -> Tensor:
            return x.flatten(1)

        def A_adjoint(self, y: Tensor) -> Tensor:
            return y.view(-1, 1, 4, 4)

    with pytest.raises(NediffError, match=r"must have the shape \(C, h, w\), not \(16,\)"):
        Problem.from_physics(Flat(), 0.1, (1, 4, 4))


class OwnPhysics:
    """A blur with an adjoint that may be false."""

    def __init__(self, adjoint: Callable[[Convolution, Tensor], Tensor]) -> None:
        self.blur, self.adjoint = Convolution(some_kernel(3, 3)), adjoint

    def A(self, x: Tensor) -> Tensor:
        return self.blur.A(x)

    def A_adjoint(self, y: Tensor) -> Tensor:
        return self.adjoint(self.blur, y)


@pytest.mark.parametrize("side", [6, 130])
def test_a_false_adjoint_is_refused(side: int) -> None:
    """Also a little false, and where the image is large, so that ⟨Ax, y⟩ is far from ‖Ax‖ ‖y‖."""
    shape = (1, side, side)
    true = Problem.from_physics(OwnPhysics(lambda blur, y: blur.A_adjoint(y)), 0.1, shape)
    assert true.operator.fixed_size == (side - 2, side - 2)
    for false in (
        lambda blur, y: 1.1 * blur.A_adjoint(y),
        lambda blur, y: blur.turned(2).A_adjoint(y),  # convolved once more, not correlated
        lambda blur, y: blur.A_adjoint(y).mT,
        lambda blur, y: math.nan * blur.A_adjoint(y),
    ):
        with pytest.raises(NediffError, match=r"not the adjoint of its A: .*⟨Ax, y⟩ = "):
            Problem.from_physics(OwnPhysics(false), 0.1, shape)


def test_an_adjoint_of_another_shape_is_refused() -> None:
    from nediff.problem import _refuse_false_adjoint

    operator = Physics(OwnPhysics(lambda blur, y: blur.A_adjoint(y)), (1, 6, 6))
    operator.physics.adjoint = lambda blur, y: y
    with pytest.raises(NediffError, match=r"gives images of shape \(1, 4, 4\), not \(1, 6, 6\)"):
        _refuse_false_adjoint(operator)


def test_constructors_take_what_a_user_has() -> None:
    mask = some_mask((4, 5))
    by_array = Problem.inpainting(255 * mask.numpy().astype(np.uint8), 0.1, 3)
    assert torch.equal(by_array.A(torch.ones(1, 3, 4, 5))[0, 2], mask)
    assert Problem.demosaicing(0.1, "rggb") == Problem.demosaicing(0.1, "RGGB")
    kernel = np.array([[1, 2], [3, 4]])
    ones = torch.ones(1, 1, 4, 4)
    torch.testing.assert_close(Problem.blur(kernel, 0.1).A(ones), torch.ones(1, 1, 3, 3))
    columns = Problem.mri([0, 1, 1, 0], 0.1).operator.arrays()["mask"]
    assert columns.tolist() == [[0, 1, 1, 0]] * 4
    oblong = Problem.mri([0, 1, 1, 0], 0.1, height=6)
    assert oblong.operator.arrays()["mask"].tolist() == [[0, 1, 1, 0]] * 6
    oblong.check_size(6, 4)


@pytest.mark.parametrize("fraction", [0.1, 0.7, 0.95])
def test_a_random_mask_measures_its_fraction(fraction: float) -> None:
    mask = random_mask(fraction, (200, 150), seed=1)
    assert mask.shape == (200, 150)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    # 30 000 independent pixels, five standard errors
    assert abs(mask.mean().item() - fraction) < 5 * math.sqrt(fraction * (1 - fraction) / 30_000)
    centred = mask - mask.mean()
    for neighbours in (centred[1:] * centred[:-1], centred[:, 1:] * centred[:, :-1]):
        correlation = neighbours.mean() / centred.square().mean()
        assert abs(correlation) < 5 / math.sqrt(29_800)
    assert torch.equal(mask, random_mask(fraction, (200, 150), seed=1))
    assert not torch.equal(mask, random_mask(fraction, (200, 150), seed=2))


@pytest.mark.parametrize("width", [128, 65])
@pytest.mark.parametrize("acceleration", [2, 4, 8])
def test_a_cartesian_mask_has_its_centre_and_its_share(width: int, acceleration: int) -> None:
    mask = cartesian_mask((10, width), acceleration, seed=0)
    assert mask.shape == (10, width)
    assert (mask == mask[:1]).all()  # whole columns
    columns = mask[0]
    middle = round(0.08 * width)
    assert columns.sum() == max(round(width / acceleration), middle)
    start = width // 2 - middle // 2
    assert columns[start : start + middle].all()
    assert columns[width // 2] == 1
    assert torch.equal(mask, cartesian_mask((10, width), acceleration, seed=0))
    assert not torch.equal(mask, cartesian_mask((10, width), acceleration, seed=1))
    Problem.mri(cartesian_mask((width, width), acceleration, seed=0), 0.1)


def test_a_cartesian_mask_never_leaves_out_its_centre() -> None:
    columns = cartesian_mask((4, 32), 100, seed=0)[0]
    assert columns.sum() == 3  # round(0.08 · 32)
    assert columns[16] == 1
