"""Every figure is labelled, drawn once and shows the numbers it was given."""

from collections.abc import Callable

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

import remat.figures as figures
from remat.advice import Setting, advise, prices
from remat.chain import chain_of
from remat.choices import every_choice
from remat.convnet import conv_net
from remat.cost import flops, roofline
from remat.cuts import every_cut
from remat.gpt import gpt_layer, shape
from remat.hardware import Link, device, link
from remat.offload import offload_all
from remat.replay import replay
from remat.schedules import segmented, uniform
from remat.steps import training

LINE = chain_of([1] * 16)
WIRE = Link("a wire", 1, 1, "an example")
LAYER = gpt_layer(s=64, b=1, h=64, a=4)
COSTS = roofline(LAYER, device("H100"))


def offloaded() -> Figure:
    line = chain_of([1] * 6, saved=2, needs="tape")
    return figures.stream_timelines(
        {"a wire": replay(line, offload_all(line), link=WIRE)}, seconds=1, memory=1
    )


PRICED = prices(
    Setting(shape("GPT-3 175B"), s=2048, device=device("H100"), link=link("PCIe 5"), t=8, p=8, stage=7)
)


DRAWN: dict[str, Callable[[], Figure]] = {
    "advice_picture": figures.advice_picture,
    "buffer_lifetimes": lambda: figures.buffer_lifetimes(
        training(conv_net(blocks=2, channels=4, height=4, width=4, batch=1))
    ),
    "choice_frontiers": lambda: figures.choice_frontiers(
        every_choice(LAYER, flops(LAYER)), every_choice(LAYER, COSTS)
    ),
    "efficiency_curves": lambda: figures.efficiency_curves(
        [1e9, 1e10], {"states": [0.1, 0.5]}, links={"a wire": 2e9}
    ),
    "frontier_panels": lambda: figures.frontier_panels(
        {"even": (every_cut(LINE).frontier, {"every 4": replay(LINE, uniform(LINE, 4))})}
    ),
    "frontiers_compared": lambda: figures.frontiers_compared({"even": every_cut(LINE).frontier}),
    "ledger_bars": lambda: figures.ledger_bars(LAYER),
    "memory_bars": lambda: figures.memory_bars({"a": [30e9, 60e9]}, ["state", "activations"], capacity=80e9),
    "offload_frontiers": lambda: figures.offload_frontiers(every_choice(LAYER, COSTS, offload=True), [WIRE]),
    "predicted_and_measured": lambda: figures.predicted_and_measured([1, 2], [3, 4], [3, 4], x="k", y="peak"),
    "spacing_curves": lambda: figures.spacing_curves(
        [2, 4, 8], [replay(LINE, uniform(LINE, k)) for k in (2, 4, 8)], stages=16
    ),
    "step_memory": lambda: figures.step_memory({"every 4": replay(LINE, uniform(LINE, 4))}),
    "step_on_frontier": lambda: figures.step_on_frontier(
        replay(LINE, uniform(LINE, 4)), every_cut(LINE).frontier, name="every 4"
    ),
    "strategy_bars": lambda: figures.strategy_bars(PRICED[0], memory=80e9, slowest=1),
    "strategy_panels": lambda: figures.strategy_panels({"PCIe 5": PRICED}),
    "stream_timelines": offloaded,
}


def test_every_figure_of_the_package_is_here() -> None:
    assert set(DRAWN) == set(figures.__all__)


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_axes_are_labelled_and_nothing_stays_open(name: str) -> None:
    fig = DRAWN[name]()
    assert not plt.get_fignums()
    fig.canvas.draw()
    for axes in fig.axes:
        if not axes.axison:
            continue
        shared = axes.get_shared_x_axes().get_siblings(axes)
        assert axes.get_xlabel() or any(other.get_xlabel() for other in shared)
        shared = axes.get_shared_y_axes().get_siblings(axes)
        named = "".join(label.get_text() for other in shared for label in other.get_yticklabels())
        assert any(other.get_ylabel() for other in shared) or any(map(str.isalpha, named))


def texts(fig: Figure) -> str:
    return " | ".join(text.get_text() for axes in fig.axes for text in axes.texts)


def test_numbers_in_the_picture_are_those_of_the_data() -> None:
    assert "peak 9" in texts(figures.step_memory({"every 4": replay(LINE, uniform(LINE, 4))}))
    best = replay(LINE, segmented(LINE, [1, 5, 4, 3, 2, 1]))
    assert "peak 8" in texts(figures.step_memory({"best": best}))
    assert "90.0  too much" in texts(DRAWN["memory_bars"]())
    assert "k = 4: peak 9" in texts(DRAWN["spacing_curves"]())
    totals = [f"{LAYER.bytes_of(names) / LAYER.unit:.4g}" for names in ([t.name for t in LAYER.saved], ["x"])]
    assert all(total in texts(DRAWN["ledger_bars"]()) for total in totals)


def test_step_memory_fills_up_to_what_replay_counted() -> None:
    counted = replay(LINE, uniform(LINE, 4))
    (axes,) = figures.step_memory({"every 4": counted}).axes
    tops = [max(patch.get_data().values) for patch in axes.patches]
    assert max(tops) == counted.peak


def test_explored_figures_show_their_numbers() -> None:
    counted = replay(LINE, uniform(LINE, 4))
    left, right = figures.step_on_frontier(counted, every_cut(LINE).frontier, name="every 4").axes
    assert "peak 9" in [text.get_text() for text in left.texts]
    assert (counted.peak, counted.work) in [
        (line.get_xdata()[0], line.get_ydata()[0]) for line in right.lines if len(line.get_xdata()) == 1
    ]
    shown = texts(figures.strategy_bars(PRICED[2], memory=80e9, slowest=1))
    assert f"{PRICED[2].total / 1e9:,.1f}" in shown and f"{PRICED[2].overhead:.1%}" in shown
    too_much = texts(figures.strategy_bars(PRICED[0], memory=PRICED[0].total / 2, slowest=1))
    assert f"{PRICED[0].total / 1e9:,.1f} →" in too_much


def test_advice_answers_its_questions_for_a_setting() -> None:
    """The picture stops where `advise` does, and shows the bytes and the time of the prices."""
    gpt3, h100 = shape("GPT-3 175B"), device("H100")
    at_2048 = Setting(gpt3, s=2048, device=h100, link=link("PCIe 5"), t=8, p=8, spare=10e9)
    slow = Setting(gpt3, s=8192, device=h100, link=link("PCIe 4"), t=8, p=8, spare=10e9)
    for setting in (at_2048, slow):
        priced, taken = prices(setting), advise(setting)
        (axes,) = figures.advice_picture(priced).axes
        said = [text.get_text() for text in axes.texts]
        no = [text for text in said if text.startswith("no: ")]
        assert f"yes: +{taken.overhead:.0%}" in said
        assert len(no) == [price.strategy.name for price in priced].index(taken.strategy.name)
        for text, price in zip(no, priced, strict=False):
            reason = f"slower, +{price.overhead:.0%}" if price.fits else f"{price.total / 1e9:.0f} GB"
            assert reason in text
        bold = [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"]
        assert sorted(bold) == sorted([*no, f"yes: +{taken.overhead:.0%}"])


def test_advice_that_finds_nothing_leads_to_the_last_box() -> None:
    none = Setting(
        shape("GPT-3 175B"), s=2048, device=device("H100"), link=link("PCIe 4"), t=8, p=4, spare=10e9
    )
    (axes,) = figures.advice_picture(prices(none)).axes
    said = [text.get_text() for text in axes.texts]
    assert not [text for text in said if text.startswith("yes:")]
    assert len([text for text in said if text.startswith("no: ")]) == 6
