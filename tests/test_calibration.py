"""Reliability and expected calibration error."""

import numpy as np
import pytest

from bertkit.metrics.calibration import compute_calibration


def test_two_bins_by_hand():
    found = compute_calibration(np.array([0.1, 0.3, 0.9, 1.0]), np.array([False, True, True, True]), bins=2)
    assert found.count.tolist() == [2, 2]
    assert found.confidence == pytest.approx([0.2, 0.95])
    assert found.accuracy == pytest.approx([0.5, 1.0])
    assert found.ece == pytest.approx(0.5 * 0.3 + 0.5 * 0.05)


def test_bins_include_their_upper_bound_and_cover_all_probabilities():
    found = compute_calibration(np.array([0.0, 0.2, 0.2000001, 1.0]), np.ones(4, bool), bins=5)
    assert found.count.tolist() == [2, 1, 0, 0, 1]


def test_an_empty_bin_is_ignored():
    found = compute_calibration(np.full(10, 0.7), np.arange(10) < 7)
    assert np.isnan(found.accuracy[0])
    assert found.ece == pytest.approx(0.0)
