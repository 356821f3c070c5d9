"""The explorers of the published pages: every slider, by keyboard, with no kernel and no network."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator

from browsing import LECTURES, PHONE, Visit
from remat import explorers
from remat.explore import Explorer

EXPLORERS: dict[str, tuple[str, Callable[[], Explorer]]] = {
    "notebooks/01_activations": ("ledger", explorers.ledger),
    "notebooks/02_checkpointing_a_chain": ("spacing", explorers.spacing),
    "notebooks/03_selective_recomputation": ("choices", explorers.choices),
    "notebooks/04_offloading": ("timeline", explorers.timeline),
    "notebooks/05_planning": ("budget", explorers.budget),
    "notebooks/06_checkpointing_in_pytorch": ("segments", explorers.segments),
}
Open = Callable[..., Visit]
each = pytest.mark.parametrize("page", EXPLORERS)


def block(visit: Visit, name: str) -> Locator:
    found = visit.page.locator(f"#explore-{name}")
    assert found.count() == 1
    found.scroll_into_view_if_needed()
    return found


def state(found: Locator) -> tuple[str, str]:
    """The picture's address and the sentence."""
    source = found.locator(".remat-picture").get_attribute("src")
    assert source
    return source, found.locator(".remat-sentence").inner_text()


def press(visit: Visit, found: Locator, slider: Locator, key: str) -> None:
    """Press a key on a slider and wait until the sentence says what the package says, or time runs out."""
    slider.focus()
    visit.page.keyboard.press(key)
    visit.page.wait_for_function(
        "found => found.querySelector('.remat-frames') === null", arg=found.element_handle()
    )
    visit.page.evaluate("() => new Promise(requestAnimationFrame)")


def test_every_lecture_has_its_explorer() -> None:
    assert set(EXPLORERS) == set(LECTURES)


@each
def test_every_slider_answers_with_what_the_package_computes(open_page: Open, page: str) -> None:
    name, make = EXPLORERS[page]
    explorer = make()
    visit = open_page(page)
    found = block(visit, name)
    for key, slider in explorer.sliders.items():
        control = found.locator(f"#explore-{name}-{key}")
        label = found.locator(f"label[for='explore-{name}-{key}']")
        assert label.is_visible() and label.inner_text().strip()
        seen = set()
        for press_key, value in (("Home", slider.values[0]), ("End", slider.values[-1])):
            press(visit, found, control, press_key)
            setting = explorer.default | {key: value}
            _, said = explorer.draw(**setting)
            picture, sentence = state(found)
            assert sentence == said
            assert control.get_attribute("aria-valuetext") == slider.text(value)
            assert control.locator("xpath=..").locator(".remat-value").inner_text() == slider.text(value)
            seen.add((picture, sentence))
        assert len({picture for picture, _ in seen}) == 2, "the picture did not change"
        assert len({sentence for _, sentence in seen}) == 2, "the sentence did not change"
        steps = slider.values.index(slider.default)
        press(visit, found, control, "Home")
        for _ in range(steps):
            press(visit, found, control, "ArrowRight")
        assert state(found)[1] == explorer.draw(**explorer.default)[1]
    assert not visit.complaints
    assert not [url for url in visit.requests if not re.match(r"(file|data|blob):", url)]
    visit.close()


@each
def test_a_slider_answers_within_a_frame(open_page: Open, page: str) -> None:
    name, _ = EXPLORERS[page]
    visit = open_page(page)
    found = block(visit, name)
    press(visit, found, found.locator("input").first, "End")
    spent = visit.page.evaluate(
        """found => {
          const input = found.querySelector("input");
          const times = [];
          for (let i = 0; i < 21; i++) {
            input.value = i % 2 ? input.max : input.min;
            const start = performance.now();
            input.dispatchEvent(new Event("input", {bubbles: true}));
            times.push(performance.now() - start);
          }
          return times.sort((a, b) => a - b)[10];
        }""",
        found.element_handle(),
    )
    assert spent < 16, f"the handler took {spent:.1f} ms"
    visit.close()


@each
def test_without_scripts_the_default_stands(open_page: Open, page: str) -> None:
    name, make = EXPLORERS[page]
    explorer = make()
    visit = open_page(page, scripts="off")
    found = visit.page.locator(f"#explore-{name}")
    assert found.locator(".remat-sentence").inner_text() == explorer.draw(**explorer.default)[1]
    assert (found.locator(".remat-picture").get_attribute("src") or "").startswith("data:image/svg+xml")
    assert found.locator(".remat-picture").get_attribute("alt") == explorer.alt
    assert not found.locator(".remat-sliders").is_visible()
    visit.close()


@each
def test_the_sentence_is_announced_and_fits_a_phone(open_page: Open, page: str) -> None:
    name, _ = EXPLORERS[page]
    visit = open_page(page, width=PHONE)
    sentence = block(visit, name).locator(".remat-sentence")
    assert sentence.get_attribute("aria-live") == "polite"
    assert sentence.get_attribute("role") == "status"
    wide = visit.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= PHONE
    visit.close()
