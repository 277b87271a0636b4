"""cost.fit finds latency and time per byte again, in times that were made from them."""

import numpy
import pytest

from ddp_lab.errors import InputError
from ddp_lab.meters.cost import Cost, fit

SIZES = [2**power for power in range(10, 27, 2)]  # 1 KiB to 64 MiB


@pytest.mark.parametrize("alpha, beta", [(150e-6, 0.4e-9), (1e-3, 1e-9), (5e-6, 5e-12), (0.0, 1e-9), (1e-4, 0.0)])
def test_exact_times_give_back_their_cost(alpha, beta):
    cost = fit(SIZES, [alpha + beta * size for size in SIZES])
    assert cost.alpha == pytest.approx(alpha, rel=1e-9, abs=1e-15)
    assert cost.beta == pytest.approx(beta, rel=1e-9, abs=1e-21)


def test_the_latency_is_found_among_times_of_large_tensors_that_are_off():
    """Absolute least squares would give the largest sizes all say: here a latency below 0, or 100 times too long."""
    seconds = [150e-6 + 0.4e-9 * size for size in SIZES]
    seconds[-1] *= 1.5
    seconds[-2] *= 0.7
    cost = fit(SIZES, seconds)
    assert cost.alpha == pytest.approx(150e-6, rel=0.1) and cost.beta == pytest.approx(0.4e-9, rel=0.2)


def test_the_fit_is_that_of_numpy_for_the_relative_errors():
    seconds = [time * (1 + 0.3 * (-1) ** number) for number, time in enumerate(1e-4 + 1e-9 * size for size in SIZES)]
    rows = numpy.array([[1 / time, size / time] for size, time in zip(SIZES, seconds, strict=True)])
    scale = numpy.array([1e-4, 1e-9])  # or lstsq would take the smaller column for rounding
    best, *_ = numpy.linalg.lstsq(rows * scale, numpy.ones(len(SIZES)), rcond=None)
    assert fit(SIZES, seconds) == pytest.approx(best * scale, rel=1e-9)


def test_no_cost_is_below_0():
    assert fit([1, 2], [1e-9, 1.0]).alpha == 0.0  # through these two a line would begin below 0
    assert fit([1, 2], [1.0, 0.5]).beta == 0.0
    assert fit([1, 2], [1.0, 0.5]).alpha > 0


def test_arrays_and_whole_numbers_are_fitted():
    assert fit(numpy.array([1, 2]), numpy.array([1.5, 2.0])) == fit([1, 2], [1.5, 2])
    assert fit({1: 1.5, 2: 2.0}, {1: 1.5, 2: 2.0}.values()) == fit([1, 2], [1.5, 2])


@pytest.mark.parametrize("given", [
    ["a", "b"], ["12", "34"], "12", [b"1", b"2"], None, 1, [[1], [2]], [1j, 2], [None, 2], [10**400, 2],
    "", numpy.array([[1.0], [2.0]]), numpy.array([1j, 2j], dtype="complex64"),
], ids=str)  # fmt: skip
def test_what_is_no_list_of_numbers_is_refused(given):
    with pytest.raises(InputError, match="(?s)sizes=.* is no list of numbers"):
        fit(given, [1.0, 2.0])
    with pytest.raises(InputError, match="(?s)seconds=.* is no list of numbers"):
        fit([1, 2], given)


@pytest.mark.parametrize("sizes, seconds", [
    ([1, 2], [1e-300, 1e-300]), ([1, 2], [5e-324, 5e-324]), ([1, 2], [1e300, 1e300]), ([1, 1e300], [1e-9, 1.0]),
])  # fmt: skip
def test_no_cost_is_beyond_floats(sizes, seconds):
    with pytest.raises(InputError, match="leave the range of floats"):
        fit(sizes, seconds)


def test_where_one_part_is_0_the_other_is_the_best_by_itself():
    """Least squares of beta * size / time - 1 alone: sum(r) / sum(r * r) of r = size / time; so for 1 / time."""
    rates = [1 / 1.0, 2 / 4.0]
    assert fit([1, 2], [1.0, 4.0]) == pytest.approx((0.0, sum(rates) / sum(rate * rate for rate in rates)))
    rates = [1 / 1.0, 1 / 0.5]
    assert fit([1, 2], [1.0, 0.5]) == pytest.approx((sum(rates) / sum(rate * rate for rate in rates), 0.0))


def test_a_message_of_no_bytes_has_the_latency_alone():
    assert fit([0, 10], [2.0, 7.0]) == pytest.approx((2.0, 0.5))


def test_seconds_of_a_message_and_of_several_rounds():
    cost = Cost(alpha=2.0, beta=0.5)
    assert cost.seconds(10) == 7.0 and cost.seconds(10, rounds=3) == 11.0


@pytest.mark.parametrize(
    "sizes, seconds, words",
    [
        ([1, 2], [1.0], "2 sizes and 1 times"),
        ([1, 2], [1.0, 0.0], "a time of 0.0 s"),
        ([1, 2], [1.0, float("nan")], "a time of nan s"),
        ([-1, 2], [1.0, 1.0], "a size of -1.0 bytes"),
        ([1, float("inf")], [1.0, 1.0], "a size of inf bytes"),
        ([4, 4], [1.0, 2.0], "two sizes at least, and there is 4 alone"),
        ([], [], "two sizes at least, and there are 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused(sizes, seconds, words):
    with pytest.raises(InputError, match=words):
        fit(sizes, seconds)
