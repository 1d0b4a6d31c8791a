"""Fixtures for all tests of the Python package."""

import collections.abc

import pytest
import ropepool


@pytest.fixture
def num_threads() -> collections.abc.Iterator[collections.abc.Callable[[int], None]]:
    """Sets the number of threads for one test."""
    before = ropepool.get_num_threads()
    yield ropepool.set_num_threads
    ropepool.set_num_threads(before)
