"""Counter-based noise: known answers, independence of batch and window, right moments."""

from __future__ import annotations

import math

import pytest
import torch

from nediff.randomness import Draws, derive_key, normal_field, philox


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known-answer vectors of Random123 for philox4x32-10
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    k0, k1 = (torch.tensor([word]) for word in key)
    assert tuple(philox((c0, c1, c2, c3), (k0, k1))[:, 0].tolist()) == expected


def test_windows_of_one_plane_agree_wherever_they_overlap() -> None:
    plane = normal_field([7], 3, 50, 61)
    for top, left, height, width in [(0, 0, 50, 61), (5, 7, 20, 31), (49, 60, 1, 1), (3, 4, 8, 8)]:
        window = normal_field([7], 3, height, width, top=top, left=left)
        assert torch.equal(window, plane[:, :, top : top + height, left : left + width])


def test_noise_does_not_depend_on_the_batch() -> None:
    together = normal_field([1, 2, 3], 2, 9, 10)
    for row, key in enumerate([1, 2, 3]):
        assert torch.equal(together[row : row + 1], normal_field([key], 2, 9, 10))


def test_moments_are_those_of_a_standard_normal() -> None:
    values = normal_field([11, 12], 2, 500, 500).double()
    n = values.numel()  # 10⁶; standard errors of the sample moments, times 5
    assert abs(values.mean()) < 5 / math.sqrt(n)
    assert abs(values.square().mean() - 1) < 5 * math.sqrt(2 / n)
    assert abs((values**4).mean() - 3) < 5 * math.sqrt(96 / n)


def test_neighbours_channels_keys_are_uncorrelated() -> None:
    a = normal_field([1, 2], 2, 400, 400).double()
    bound = 5 / math.sqrt(400 * 399)
    for lag_x, lag_y in [(0, 1), (1, 0), (0, 4), (4, 0)]:
        first, second = a[0, 0, : 400 - lag_y, : 400 - lag_x], a[0, 0, lag_y:, lag_x:]
        assert abs((first * second).mean()) < bound
    assert abs((a[0, 0] * a[0, 1]).mean()) < bound
    assert abs((a[0, 0] * a[1, 0]).mean()) < bound


def test_draws_are_functions_of_seed_stream_sample_and_order_alone() -> None:
    y = torch.zeros(4, 1, 6, 6)
    whole, part = Draws(3, "s", range(4)), Draws(3, "s", [2, 3])
    assert torch.equal(whole.uniform()[2:], part.uniform())
    assert torch.equal(whole.normal_like(y)[2:], part.normal_like(y[2:]))
    first = Draws(3, "s", 4)
    assert not torch.equal(first.uniform(), first.uniform())
    assert not torch.equal(Draws(3, "s", 4).uniform(), Draws(4, "s", 4).uniform())
    assert not torch.equal(Draws(3, "s", 4).uniform(), Draws(3, "t", 4).uniform())


def test_uniform_covers_its_interval_evenly() -> None:
    u = Draws(0, "u", 4000).uniform(2.0, 3.0).double()
    assert u.min() >= 2
    assert u.max() <= 3
    counts = torch.histc(u, bins=10, min=2, max=3)
    # χ² with 9 degrees of freedom: 99.99 % lie below 33.7
    assert ((counts - 400).square() / 400).sum() < 33.7


def test_keys_tell_types_and_boundaries_apart() -> None:
    keys = [derive_key(1, 2), derive_key(12), derive_key("1", 2), derive_key(1, "2"), derive_key()]
    assert len(set(keys)) == len(keys)
