"""What a notebook quotes reaches other pages and is not shown in its own."""

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from remat.quoted import PREFIX, quote


@pytest.fixture
def outputs() -> object:
    """What a cell's output holds."""
    InteractiveShell.instance()
    with capture_output() as captured:
        quote(peak="12.0 MB", stages=7)
    yield captured.outputs
    InteractiveShell.clear_instance()


def test_each_text_is_an_output_of_its_own_that_nothing_shows(outputs: list) -> None:
    assert [output.data for output in outputs] == [
        {f"{PREFIX}text/plain": "'12.0 MB'"},
        {f"{PREFIX}text/plain": "'7'"},
    ]
    assert [output.metadata["scrapbook"]["name"] for output in outputs] == ["peak", "stages"]


def test_nothing_to_quote_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one number"):
        quote()
    with pytest.raises(ValueError, match="empty, got '' for peak"):
        quote(peak="")
