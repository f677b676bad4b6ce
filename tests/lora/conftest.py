"""Sessions of the tests end with them."""

from collections.abc import Iterator

import pytest
from tests.lora.test_lora import OPENED


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().release()
