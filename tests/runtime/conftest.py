"""Hand-written kernels stand in for generated ones: these tests are about the runtime alone."""

import pytest

from tests.runtime import programs


@pytest.fixture
def affine(c_compiler):
    """`x * w*w + x`, built, with its weight."""
    return programs.built()
