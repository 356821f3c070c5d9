"""Chapters still to come: read from the settings, drawn in the sidebar, checked against the pages."""

from types import SimpleNamespace

import planned
import pytest
from bs4 import BeautifulSoup
from sphinx.errors import ExtensionError

SIDEBAR = """<p class="caption">Lectures</p>
<ul><li class="toctree-l1"><a href="a.html">1. First</a></li>
<li class="toctree-l1"><a href="#">2. Second</a></li></ul>
<ul><li class="toctree-l1"><a href="z.html">Last</a></li></ul>"""


def entries(sidebar: BeautifulSoup) -> list[str]:
    return [item.get_text(" ", strip=True) for item in sidebar.select("li.toctree-l1")]


def test_titles_stand_after_their_page_and_carry_on_its_numbers():
    sidebar = BeautifulSoup(SIDEBAR, "html.parser")
    planned.insert(sidebar, "#", ["Third", "Fourth"], (2,))
    assert entries(sidebar) == ["1. First", "2. Second", "In preparation 3. Third 4. Fourth", "Last"]
    assert sidebar.select("li.planned a") == []


def test_titles_after_a_page_without_a_number_have_none():
    sidebar = BeautifulSoup(SIDEBAR, "html.parser")
    planned.insert(sidebar, "z.html", ["Index"], None)
    assert entries(sidebar)[-1] == "In preparation Index"


def test_a_page_that_is_not_in_the_sidebar_is_refused():
    with pytest.raises(ExtensionError, match=r"nowhere\.html"):
        planned.insert(BeautifulSoup(SIDEBAR, "html.parser"), "nowhere.html", ["x"], None)


@pytest.mark.parametrize(
    "value", ["x", {"after": "a", "titles": ["b"], "more": 1}, [{"titles": ["b"]}], [{"after": "a"}], [3]]
)
def test_settings_of_another_shape_are_refused(value: object):
    with pytest.raises(ExtensionError, match="planned: expected"):
        planned.read([value] if isinstance(value, dict) else value)


def warnings_of(monkeypatch: pytest.MonkeyPatch, groups: list[dict[str, object]]) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(planned.logger, "warning", lambda message, *values: said.append(message % values))
    title = SimpleNamespace(astext=lambda: "Offloading")
    planned.check(
        SimpleNamespace(config=SimpleNamespace(planned=groups)),
        SimpleNamespace(titles={"04_offloading": title}),
    )
    return said


def test_a_written_chapter_may_not_stay_planned(monkeypatch: pytest.MonkeyPatch):
    said = warnings_of(monkeypatch, [{"after": "04_offloading", "titles": ["Planning", "Offloading"]}])
    assert said == ["planned: 'Offloading' is a page now; take it out of _config.yml"]


def test_a_group_needs_a_page(monkeypatch: pytest.MonkeyPatch):
    assert warnings_of(monkeypatch, [{"after": "gone", "titles": ["Planning"]}]) == [
        "planned: no page 'gone' to stand after"
    ]
