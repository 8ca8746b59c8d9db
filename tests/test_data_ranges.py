"""The intensity range and the noise level."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nediff.data import (
    IntensityRange,
    check_sigma,
    choose_range,
    open_measurements,
    sigma_to_unit,
)
from nediff.errors import NediffError

RNG = np.random.default_rng(3)


def test_affine_both_ways_and_never_clipped() -> None:
    span = IntensityRange(100.0, 300.0)
    values = np.array([-5000, 0, 100, 200, 300, 5000], np.int16)
    unit = span.to_unit(values)
    assert unit.dtype == np.float32
    np.testing.assert_array_equal(unit, np.float32([-25.5, -0.5, 0, 0.5, 1, 24.5]))
    np.testing.assert_array_equal(span.from_unit(unit), values)
    assert span.scale == 200.0


def test_unsigned_values_below_low_do_not_wrap_around() -> None:
    unit = IntensityRange(10.0, 20.0).to_unit(np.array([0], np.uint8))
    assert unit[0] == -1.0


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float64"])
def test_round_trip_precision(dtype: str) -> None:
    values = RNG.integers(0, 65535, 1000).astype(dtype)
    span = IntensityRange(0.0, 65535.0)
    assert np.abs(span.from_unit(span.to_unit(values)) - values).max() < 0.01


@pytest.mark.parametrize("pair", [(1, 1), (2, 1), (0, math.inf), (math.nan, 1)])
def test_bad_range(pair: tuple[float, float]) -> None:
    with pytest.raises(NediffError, match="not a range"):
        open_measurements(RNG.random((8, 8)), range=pair)


def chosen(values: np.ndarray) -> tuple[float, float]:
    span, how = choose_range(values, values.dtype)
    assert how
    return span.low, span.high


def test_photographs_use_all_of_uint8() -> None:
    assert chosen(RNG.integers(5, 240, 50_000).astype(np.uint8)) == (0, 255)
    assert chosen(RNG.integers(900, 60_000, 50_000).astype(np.uint16)) == (0, 65535)


def test_eleven_bits_in_uint16_fill_the_range() -> None:
    low, high = chosen(RNG.integers(100, 2048, 50_000).astype(np.uint16))
    assert 50 <= low <= 103
    assert 2040 <= high <= 2100


def test_hot_pixels_do_not_decide() -> None:
    values = RNG.integers(100, 200, 50_000).astype(np.uint16)
    values[:10] = 65535
    assert chosen(values)[1] < 210


def test_floats() -> None:
    noisy = RNG.random(50_000) + RNG.normal(0, 0.1, 50_000)
    assert chosen(noisy.astype(np.float32)) == (0, 1)
    low, high = chosen((noisy * 4000).astype(np.float32))
    assert -1500 < low < 0
    assert 4000 < high < 5500
    low, high = chosen(RNG.random(50_000) * 0.01)
    assert -0.001 < low < 0.001
    assert 0.0099 < high < 0.011
    low, high = chosen(RNG.random(50_000) * 0.2 + 7)
    assert 6.9 < low < 7.001
    assert 7.19 < high < 7.3


def test_sparse_data_use_the_extremes() -> None:
    values = np.zeros(100_000, np.uint16)
    values[17] = 900
    assert chosen(values) == (0, 900)


def test_given_range_and_constant_data() -> None:
    span, how = choose_range(np.arange(9.0), np.dtype(float), (-1, 10))
    assert (span.low, span.high) == (-1, 10)
    assert "given" in how
    with pytest.raises(NediffError, match="same value, 7"):
        choose_range(np.full(9, 7.0), np.dtype(float))
    with pytest.raises(NediffError, match="same value"):
        open_measurements(np.full((8, 9), 7, np.uint8))


def test_a_rare_value_that_the_sample_may_miss_is_no_constant() -> None:
    image = np.zeros((1500, 1500), np.uint8)
    image[700, 701] = 9
    data = open_measurements(image)
    assert (data.range.low, data.range.high) == (0, 9)


def test_sigma_units() -> None:
    span = IntensityRange(100.0, 300.0)
    assert sigma_to_unit(0.1, "fraction", span) == 0.1
    assert sigma_to_unit(20.0, "data", span) == pytest.approx(0.1)


def test_sigma_checks() -> None:
    data = open_measurements(RNG.integers(0, 256, (64, 64)).astype(np.uint8))
    total = math.sqrt(data.within_variance)
    assert total == pytest.approx(1 / math.sqrt(12), rel=0.05)
    check_sigma(0.1, data)
    check_sigma(total, data)
    for sigma in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(NediffError, match="positive number"):
            check_sigma(sigma, data)
    with pytest.raises(NediffError, match="--units data"):
        check_sigma(25.0, data)
    with pytest.raises(NediffError, match="larger than the intensity range") as caught:
        check_sigma(250.0, data)
    assert "--units" not in str(caught.value)
    with pytest.raises(NediffError, match="practically no noise"):
        check_sigma(1e-6, data)
    with pytest.raises(NediffError, match="larger than the total variation of the data"):
        check_sigma(1.2 * total, data)
