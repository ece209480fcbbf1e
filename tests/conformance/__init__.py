"""How a TFJob v1 operator behaves, seen from outside: one case, one id, on a real API server (README.md)."""

import pytest

pytest.register_assert_rewrite("conformance.lab")  # so that its assertions show the difference
