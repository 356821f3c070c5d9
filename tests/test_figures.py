"""Every figure is labeled, drawn once and shows the numbers it was given."""

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
from remat.figures.plans import Cut
from remat.gpt import gpt_layer, shape
from remat.hardware import Link, device, link
from remat.offload import offload_all
from remat.replay import replay
from remat.schedules import recursive, segmented, uniform
from remat.segment_model import segment_model
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

ESTIMATES = [segment_model(mode, L=32, k=4, A=1e9, m=0.7, f=0.1) for mode in ("none", "full")]


DRAWN: dict[str, Callable[[], Figure]] = {
    "advice_picture": figures.advice_picture,
    "api_picture": figures.api_picture,
    "budget_points": lambda: figures.budget_points([1, 0.5, 0], [1, 0.4, 0], [False, True, True]),
    "buffer_lifetimes": lambda: figures.buffer_lifetimes(
        training(conv_net(blocks=2, channels=4, height=4, width=4, batch=1))
    ),
    "choice_frontiers": lambda: figures.choice_frontiers(
        every_choice(LAYER, flops(LAYER)), every_choice(LAYER, COSTS)
    ),
    "cuts_at_one_peak": lambda: figures.cuts_at_one_peak(
        {"a net": [(Cut("2 segments", 2e6, 1.3), Cut("planned", 1.9e6, 1.1))]}
    ),
    "efficiency_curves": lambda: figures.efficiency_curves(
        [1e9, 1e10], {"states": [0.1, 0.5]}, links={"a wire": 2e9}
    ),
    "frontier_panels": lambda: figures.frontier_panels(
        {"even": (every_cut(LINE).frontier, {"every 4": replay(LINE, uniform(LINE, 4))})}
    ),
    "frontiers_compared": lambda: figures.frontiers_compared({"even": every_cut(LINE).frontier}),
    "granularity_bars": lambda: figures.granularity_bars(
        {"keep all": 24, "full": 0.04},
        {"keep all": 0, "full": 0.47},
        {"keep all": 0, "full": 1 / 3},
        unit_name="activations",
    ),  # fmt: skip
    "ledger_bars": lambda: figures.ledger_bars(LAYER),
    "memory_bars": lambda: figures.memory_bars({"a": [30e9, 60e9]}, ["state", "activations"], capacity=80e9),
    "offload_frontiers": lambda: figures.offload_frontiers(every_choice(LAYER, COSTS, offload=True), [WIRE]),
    "predicted_and_measured": lambda: figures.predicted_and_measured([1, 2], [3, 4], [3, 4], x="k", y="peak"),
    "profile_bars": lambda: figures.profile_bars(
        chain_of([1e6, 2e6], costs=[0.1, 0.2], saved=1e6, needs="tape")
    ),
    "replay_snapshots": lambda: figures.replay_snapshots(chain_of([1] * 12), uniform(chain_of([1] * 12), 4)),
    "segment_bars": lambda: figures.segment_bars(ESTIMATES, {"none": 9e9, "full": 2e9}, chosen="full"),
    "segment_curves": lambda: figures.segment_curves(
        [1, 2], {"by A": [3, 3], "by input": [1.5, 2.2]}, [1.6, 2.4], plain=2.4
    ),
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


def test_snapshots_show_what_replay_counts() -> None:
    line = chain_of([1] * 12)
    fig = figures.replay_snapshots(line, uniform(line, 4))
    (axes,) = fig.axes
    shown = [text.get_text() for text in axes.texts]
    totals = [shown[i + 1] for i, text in enumerate(shown) if text.endswith(("done", "replayed"))]
    assert totals == list("5876")
    counted = replay(line, uniform(line, 4))
    assert max(map(int, totals)) == counted.peak
    # boxes filled, row by row: all that is alive but the gradient, which is a bar of its own
    faces = [patch.get_facecolor() for patch in axes.patches]
    rows = [faces[row * 14 : row * 14 + 13] for row in range(4)]  # 13 outputs and a bar
    assert [sum(face != (1, 1, 1, 1) for face in row) for row in rows] == [4, 7, 6, 5]


def test_snapshots_need_segments_of_a_chain_of_values() -> None:
    with pytest.raises(ValueError, match="plan must be one of segments"):
        figures.replay_snapshots(LINE, recursive(LINE, 1))
    tape = chain_of([1] * 4, needs="tape")
    with pytest.raises(ValueError, match='chain must have needs="values"'):
        figures.replay_snapshots(tape, uniform(tape, 2))


def test_segment_bars_show_the_model_and_replay() -> None:
    left, right = figures.segment_bars(ESTIMATES, {"none": 9e9, "full": 2e9}, chosen="full").axes
    assert [text.get_text() for text in left.texts] == ["32.0", "12.0"]
    assert [text.get_text() for text in right.texts] == ["0.0%", "33.3%"]
    assert [line.get_xdata()[0] for line in left.lines] == [9, 2]
    assert sum(bar.get_width() for bar in left.patches) == 44


def test_granularity_shows_what_is_held_and_what_it_costs() -> None:
    shown = texts(DRAWN["granularity_bars"]())
    assert all(number in shown for number in ("24.0", "0.04", "+0 %", "+47 %"))
    (diamonds,) = DRAWN["granularity_bars"]().axes[1].lines
    assert list(diamonds.get_xdata()) == [0, pytest.approx(100 / 3)]


def test_budgets_with_wrong_gradients_look_different() -> None:
    (axes,) = DRAWN["budget_points"]().axes
    points = {line.get_label(): list(line.get_xdata()) for line in axes.lines}
    assert points["held, gradients right"] == [100] and points["held, gradients wrong"] == [50, 0]
    assert "40 %" in texts(DRAWN["budget_points"]())
    (fine,) = figures.budget_points([1], [1], [False]).axes
    assert "held, gradients wrong" not in [line.get_label() for line in fine.lines]


def test_bars_of_a_profile_show_bytes_and_milliseconds() -> None:
    fig = figures.profile_bars(chain_of([1e6, 2e6], costs=[0.1, 0.2], saved=[3e6, 5e6], needs="tape"))
    left, right = fig.axes
    assert [bar.get_width() for bar in left.patches] == [1, 2, 3, 5]
    assert [bar.get_x() for bar in left.patches] == [0, 0, 1, 2]
    assert [bar.get_width() for bar in right.patches] == pytest.approx([100, 200])


def test_cuts_and_plans_stand_at_their_times_with_their_peaks_beside_them() -> None:
    pairs = [(Cut("2 segments", 2e6, 1.3), Cut("planned", 1.9e6, 1.1))]
    fig = figures.cuts_at_one_peak({"a": pairs, "b": pairs})
    times = [tuple(line.get_xdata()) for line in fig.axes[0].lines]
    assert times[:6] == [(1.3, 1.1), (1.3,), (1.1,)] * 2
    assert texts(fig).count("2.00 and 1.90 MB") == 2
