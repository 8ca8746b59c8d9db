"""Invariances drawn per image, and what an operator sees through them (METHOD.md §2)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nediff.groups import GROUPS, any_angle, seen_share, shifts, shifts_and_turns, turns
from nediff.operators import Convolution, Fourier, Identity, LinearOperator, Mask, turn
from nediff.problem import Problem, cartesian_mask
from nediff.randomness import Draws
from tests.instruments import normals, some_mask

EXACT = ("shifts", "turns", "shifts_and_turns")  # these only move pixels
SIDE = 8
LEAST_GAIN = 0.05  # the default of seen_share


def draws_of(k: int) -> Draws:
    return Draws(0, "group", [k])


class OneAngle(Draws):
    """Says the same number whenever it is asked."""

    def __init__(self, angle: float, samples: int) -> None:
        super().__init__(0, "angle", samples)
        self.angle = angle

    def uniform(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        assert (low, high) == (0.0, 2 * math.pi)
        return torch.full((len(self.samples),), self.angle)


# --- the elements ---------------------------------------------------------------------------------


@pytest.mark.parametrize("group", EXACT)
@pytest.mark.parametrize("size", [(6, 6), (5, 7)])
def test_elements_move_pixels_and_lose_none(group: str, size: tuple[int, int]) -> None:
    """Orthogonal: the same values in other places, so ⟨Tx, Ty⟩ = ⟨x, y⟩; all channels alike."""
    x, y = normals((20, 2, *size), 1), normals((20, 2, *size), 2)
    tx, ty = (GROUPS[group](v, Draws(0, "t", 20)) for v in (x, y))
    assert tx.shape == x.shape
    torch.testing.assert_close(tx.flatten(2).sort().values, x.flatten(2).sort().values)
    torch.testing.assert_close((tx * ty).flatten(1).sum(1), (x * y).flatten(1).sum(1))
    assert (tx - x).abs().max() > 0.1
    first, second = x.clone(), x.clone()
    second[:, 1] = first[:, 0]
    both = GROUPS[group](second, Draws(0, "t", 20))
    assert torch.equal(both[:, 1], both[:, 0])


@pytest.mark.parametrize("group", list(GROUPS))
def test_elements_are_linear(group: str) -> None:
    """So that their adjoint, which seen_share needs, is their derivative."""
    x, y = normals((6, 1, 7, 7), 1), normals((6, 1, 7, 7), 2)
    t = [GROUPS[group](v, Draws(3, "t", 6)) for v in (x, y, 0.3 * x - 2 * y)]
    torch.testing.assert_close(t[2], 0.3 * t[0] - 2 * t[1])


@pytest.mark.parametrize("group", list(GROUPS))
def test_every_image_has_its_own_element(group: str) -> None:
    one = normals((1, 1, 9, 9))
    moved = GROUPS[group](one.expand(40, -1, -1, -1), Draws(0, "t", 40))
    different = {tuple(row.flatten().tolist()) for row in moved}
    # 8 turns: 40 draws see at least 6 of them but for one case in 10⁵; of the others, at least 30
    assert len(different) >= (6 if group == "turns" else 25)


@pytest.mark.parametrize("group", list(GROUPS))
def test_an_element_depends_on_the_sample_alone(group: str) -> None:
    x = normals((6, 2, 8, 8))
    together = GROUPS[group](x, Draws(5, "t", range(10, 16)))
    assert torch.equal(together, GROUPS[group](x, Draws(5, "t", range(10, 16))))
    for i in range(6):
        alone = GROUPS[group](x[i : i + 1], Draws(5, "t", [10 + i]))
        torch.testing.assert_close(alone[0], together[i], rtol=0, atol=1e-12)
    assert not torch.equal(together, GROUPS[group](x, Draws(6, "t", range(10, 16))))


def test_all_shifts_occur_equally_often() -> None:
    image = torch.zeros(1, 1, 3, 4)
    image[..., 0, 0] = 1
    n = 6000
    where = shifts(image.expand(n, -1, -1, -1), Draws(0, "t", n)).flatten(1).argmax(1)
    counts = torch.bincount(where, minlength=12)
    # binomial with p = 1/12, five standard deviations
    assert (counts - n / 12).abs().max() < 5 * math.sqrt(n / 12 * 11 / 12)


@pytest.mark.parametrize("size", [(3, 3), (3, 4)])
def test_all_turns_that_fit_occur_equally_often(size: tuple[int, int]) -> None:
    image = torch.arange(float(size[0] * size[1])).view(1, 1, *size)
    n, fitting = 4000, [k for k in range(8) if size[0] == size[1] or k % 2 == 0]
    moved = turns(image.expand(n, -1, -1, -1), Draws(0, "t", n))
    counts = [int((moved == turn(image, k)).flatten(1).all(1).sum()) for k in fitting]
    assert sum(counts) == n
    p = 1 / len(fitting)
    assert max(abs(c - n * p) for c in counts) < 5 * math.sqrt(n * p * (1 - p))


def test_shifts_and_turns_are_both() -> None:
    x = normals((12, 1, 6, 6))
    moved = shifts_and_turns(x, Draws(0, "t", 12))
    draws = Draws(0, "t", 12)
    shifted = shifts(x, draws)
    assert torch.equal(moved, turns(shifted, draws))
    assert not torch.equal(moved, shifted)


# --- any angle ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(8, 8), (7, 7), (6, 9)])
def test_right_angles_are_exact(size: tuple[int, int]) -> None:
    x = normals((2, 3, *size))
    quarter = math.pi / 2
    found = [any_angle(x, OneAngle(k * quarter, 2)) for k in range(4)]
    torch.testing.assert_close(found[0], x, rtol=0, atol=1e-5)
    torch.testing.assert_close(found[2], turn(x, 2), rtol=0, atol=1e-5)
    if size[0] == size[1]:
        expected = [turn(x, 1), turn(x, 3)]
        if (found[1] - expected[0]).abs().max() > 1e-5:  # either sense of rotation will do
            expected.reverse()
        torch.testing.assert_close(found[1], expected[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(found[3], expected[1], rtol=0, atol=1e-5)


def test_rotations_keep_shapes_round_also_in_oblong_images() -> None:
    """A disc in the middle stays one, within the circle that never leaves the image."""
    row, column = torch.meshgrid(torch.arange(30.0), torch.arange(50.0), indexing="ij")
    distance = ((row - 14.5).square() + (column - 24.5).square()).sqrt()
    disc = torch.sigmoid(2 * (10 - distance))[None, None]
    inside = distance < 14
    for angle in (0.4, 1.0, 2.5):  # bilinear interpolation blurs its edge a little
        moved = any_angle(disc, OneAngle(angle, 1))
        assert (moved - disc)[..., inside].abs().max() < 0.1
    bar = torch.sigmoid(2 * (3 - (row - 14.5).abs()))[None, None]
    assert (any_angle(bar, OneAngle(1.0, 1)) - bar)[..., inside].abs().max() > 0.9


@pytest.mark.parametrize("size", [(16, 16), (12, 40)])
def test_rotations_leave_no_black_corners(size: tuple[int, int]) -> None:
    bright = torch.full((16, 1, *size), 0.8)
    moved = any_angle(bright, Draws(0, "t", 16))
    torch.testing.assert_close(moved, bright)


# --- what is seen through {A T_g} -----------------------------------------------------------------


def dense(operator: LinearOperator, like: Tensor, group: str | None, elements: int = 32) -> Tensor:
    """N, the mean of TᵀAᵀAT, as a matrix: every T written out on a basis of all images."""
    n = like.numel()
    basis = torch.eye(n, dtype=torch.float64).view(n, *like.shape[1:])
    total = torch.zeros(n, n, dtype=torch.float64)
    numbers = range(elements) if group else range(1)
    for k in numbers:
        # the same element for every row: one draw, of sample k
        moved = basis if group is None else GROUPS[group](basis, Draws(0, "group", [k] * n))
        rows = operator.A(moved).flatten(1)
        total += rows @ rows.T
    return total / len(numbers)


def exact_share(n_matrix: Tensor) -> tuple[float, float]:
    """tr(N (N + ε)⁻¹)/n, and the standard deviation of its estimate by one ±1 probe."""
    values, vectors = torch.linalg.eigh(n_matrix)
    eps = LEAST_GAIN**2 * values.max()
    filtered = vectors @ torch.diag(values / (values + eps)) @ vectors.T
    off_diagonal = filtered - filtered.diagonal().diag()
    n = len(n_matrix)
    return float(filtered.trace() / n), float((2 * off_diagonal.square().sum()).sqrt() / n)


def rank_share(n_matrix: Tensor) -> float:
    """The share of directions that are seen at all."""
    values = torch.linalg.eigvalsh(n_matrix)
    return float((values > 1e-9 * values.max()).double().mean())


def checked_share(
    operator: LinearOperator, channels: int, group: str | None
) -> tuple[float, float]:
    """(seen_share, share of the rank), after comparing the first with linear algebra."""
    size = operator.fixed_size or (SIDE, SIDE)
    like = torch.zeros(1, channels, *operator.image_size(*size), dtype=torch.float64)
    found = seen_share(operator, like, group, draws_of)
    matrix = dense(operator, like, group)
    expected, spread = exact_share(matrix)
    # five standard deviations of the probe; 1e-3 for the power iteration's largest eigenvalue
    assert abs(found - expected) < 5 * spread + 1e-3
    return found, rank_share(matrix)


def test_alone_a_mask_sees_its_share() -> None:
    mask = some_mask((1, 1, SIDE, SIDE), 0.5)
    share = mask.mean().item()
    found, rank = checked_share(Mask(mask), 1, None)
    assert rank == pytest.approx(share)
    assert found == pytest.approx(share / (1 + LEAST_GAIN**2), rel=1e-5)  # diagonal: no error
    complete, _ = checked_share(Identity(), 1, None)
    assert complete == pytest.approx(1 / (1 + LEAST_GAIN**2), rel=1e-5)


def test_shifts_show_a_mask_everything() -> None:
    mask = Mask(some_mask((1, 1, SIDE, SIDE), 0.5))
    found, rank = checked_share(mask, 1, "shifts")
    assert rank == 1.0  # 32 shifts miss a pixel with probability 2⁻³²
    assert found > 0.98


@pytest.mark.parametrize("group", ["turns", "shifts"])
def test_turns_or_shifts_show_a_mosaic_everything(group: str) -> None:
    mosaic = Problem.demosaicing(0.1).operator.window(0, 0, SIDE, SIDE)
    alone, rank_alone = checked_share(mosaic, 3, None)
    assert rank_alone == pytest.approx(1 / 3)
    assert alone == pytest.approx(1 / 3, abs=0.01)
    found, rank = checked_share(mosaic, 3, group)
    assert rank == 1.0
    assert found > 0.98


def test_shifts_show_an_mri_nothing_new_but_turns_do() -> None:
    """It commutes with shifts; a turned set of columns is a set of rows."""
    columns = cartesian_mask((SIDE, SIDE), 2, seed=0)
    operator = Fourier(columns)
    share = columns.mean().item()
    alone, rank_alone = checked_share(operator, 2, None)
    shifted, rank_shifted = checked_share(operator, 2, "shifts")
    assert rank_alone == rank_shifted == pytest.approx(share)
    assert shifted == pytest.approx(alone, abs=1e-6)
    turned, rank_turned = checked_share(operator, 2, "turns")
    # T shifts and turns k-space: frequency f is seen if any of the 8 turns of it is in the mask
    centred = torch.fft.ifftshift(columns)
    frequencies = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE))
    seen = torch.zeros(SIDE, SIDE)
    for i, j in frequencies.tolist():
        orbit = [(a, b) for a in (i, -i) for b in (j, -j)]
        orbit += [(b, a) for a, b in orbit]
        seen[i, j] = max(centred[a % SIDE, b % SIDE] for a, b in orbit)
    assert rank_turned == pytest.approx(seen.mean().item())
    assert rank_turned > rank_alone + 0.3
    assert turned > alone + 0.3


@pytest.mark.parametrize("factor", [2, 3])
def test_shifts_show_a_coarse_instrument_what_turns_do_not(factor: int) -> None:
    """Means over blocks are the same for all turns; shifted, the blocks overlap."""
    operator = Problem.super_resolution(factor, 0.1).operator
    assert operator.group == "shifts"
    assert operator.turned(1).group == "shifts"
    alone, _ = checked_share(operator, 1, None)
    turned, _ = checked_share(operator, 1, "turns")
    shifted, _ = checked_share(operator, 1, operator.group)
    assert turned == pytest.approx(alone, abs=0.05)
    assert shifted > alone + 0.25


def test_shifts_are_never_the_group_of_an_operator_that_commutes_with_them() -> None:
    """Also where turns leave it as it is, so that no group helps."""
    for operator in (Convolution(torch.ones(3, 3) / 9), Fourier(cartesian_mask((8, 8), 2, 0))):
        assert operator.group == "turns"


def test_what_hardly_reaches_the_measurement_counts_as_unseen() -> None:
    """A wide blur sees every direction in principle, but few above a gain of 5 %."""
    box = Convolution(torch.full((5, 5), 1 / 25))
    like = torch.zeros(1, 1, 12, 12, dtype=torch.float64)
    matrix = dense(box, like, None)
    expected, spread = exact_share(matrix)
    found = seen_share(box, like, None, draws_of)
    assert abs(found - expected) < 5 * spread + 1e-3
    assert found < 0.8 * rank_share(matrix)


def test_a_group_that_cannot_help_is_told_from_one_that_can() -> None:
    """The diagnosis a user gets: a mask that is one block, with turns it cannot see the middle."""
    mask = torch.ones(1, 1, SIDE, SIDE)
    mask[..., 2:6, 2:6] = 0
    found, rank = checked_share(Mask(mask), 1, "turns")
    assert rank == 0.75
    assert found == pytest.approx(0.75, abs=0.01)
    found, rank = checked_share(Mask(mask), 1, "shifts")
    assert rank == 1.0
    assert found > 0.98
