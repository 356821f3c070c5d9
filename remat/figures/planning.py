"""Figures of chapter 5: strategies side by side, and the order of advice as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from remat.advice import Price
from remat.figures.boxes import arrow, box
from remat.figures.style import INK, KEEP, LIMIT, MUTED, OFFLOAD, RECOMPUTE, WAIT, figure, finish


def strategy_panels(prices: Mapping[str, Sequence[Price]]) -> Figure:
    """Draw what each strategy needs on the GPU and what it costs in time, on one or more links.

    Args:
        prices: name of the link -> the same strategies priced on it, in one order.

    Returns:
        Left, memory against the budget (it does not depend on the link); right, time over plain compute.
    """
    first = next(iter(prices.values()))
    fig, (left, right) = figure(
        height=1.0 + 0.42 * len(first), columns=2, sharey=True, width_ratios=[1.15, 1]
    )
    names = [price.strategy.name for price in first]
    top = 1.3 * first[0].capacity
    for row, price in enumerate(first):
        left.barh(row, price.state / 1e9, height=0.66, color=WAIT, label="model state" if row == 0 else None)
        left.barh(
            row, price.activations / 1e9, left=price.state / 1e9, height=0.66, color=KEEP,
            label="activations, at their peak" if row == 0 else None,
        )  # fmt: skip
        beyond = price.total > top
        where, text = min(price.total, top) / 1e9, f"{price.total / 1e9:.0f}"
        look: dict[str, Any] = {"va": "center", "fontweight": "bold", "fontsize": 9}
        if beyond:
            left.text(where - 0.8, row, text + " →", ha="right", color="white", **look)
        else:
            left.text(where + 0.8, row, text, ha="left", color=INK, **look)
    left.axvline(first[0].capacity / 1e9, color=LIMIT, linewidth=1.6)
    left.text(first[0].capacity / 1e9, -0.62, "budget", color=LIMIT, ha="center", va="bottom", fontsize=9)
    left.set_xlim(0, top / 1e9)
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.5, -0.6)
    left.tick_params(axis="y", length=0)
    finish(left, x="memory of one GPU, GB", y="", grid="x")

    colors, markers = [RECOMPUTE, OFFLOAD, KEEP], ["o", "s", "D"]
    for index, (link, priced) in enumerate(prices.items()):
        color = colors[index % 3]
        look = {
            "marker": markers[index % 3],
            "linestyle": "none",
            "markersize": 6.5,
            "markeredgecolor": color,
        }
        for row, price in enumerate(priced):
            # Links differ only where something is copied; there they stand apart.
            offset = (index - (len(prices) - 1) / 2) * 0.22 if price.strategy.offload else 0.0
            face = color if price.fits else "white"
            label = link if row == 0 else None
            right.plot(100 * price.overhead, row + offset, markerfacecolor=face, label=label, **look)
    right.set_xlim(left=-3)
    right.tick_params(axis="y", length=0)
    finish(right, x="time over plain compute, %", y="", grid="x")
    handles = [*left.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    labels = [*left.get_legend_handles_labels()[1], *right.get_legend_handles_labels()[1]]
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    return fig


# Question, what to do if the answer is yes, its color, and the strategies of `advice` that do it.
_ADVICE = (
    ("Does it fit\nwith everything kept?", "keep everything", KEEP, ("keep all, tensor parallel",)),
    (
        "Does it fit once it is split better?\n(sequence parallel, ZeRO, larger t or p)",
        "split, keep everything",
        KEEP,
        ("keep all",),
    ),
    (
        "Does it fit without the\nattention core?",
        "selective recompute,\nor FlashAttention",
        RECOMPUTE,
        ("selective",),
    ),
    (
        "Does it fit without what else\nis cheap? (norms, GeLU, masks)",
        "recompute those too",
        RECOMPUTE,
        ("selective and cheap",),
    ),
    (
        "Does the copy of the rest hide\nbehind compute on your link?",
        "offload what selective\nrecompute keeps",
        OFFLOAD,
        ("selective + offload",),
    ),
    (
        "Does it fit with\none input a layer?",
        "full recompute,\ninputs on the host if they hide",
        RECOMPUTE,
        ("full + offload", "full recompute"),
    ),
)


def advice_picture(priced: Sequence[Price] = ()) -> Figure:
    """Draw the order of advice: questions down the left, what to do to the right of each.

    Args:
        priced: the strategies priced in one setting, as ``advice.prices`` gives them. With them the picture
            answers its own questions: why each strategy is passed over, and what the one taken costs.
    """
    of = {price.strategy.name: price for price in priced}
    choice = min((price for price in priced if price.fits), key=lambda price: price.layer_s, default=None)
    rows = [choice is not None and choice.strategy.name in names for *_, names in _ADVICE]
    last = rows.index(True) if any(rows) else len(_ADVICE)

    fig, (axes,) = figure(height=6.0)
    axes.set_axis_off()
    for row, (question, answer, color, names) in enumerate(_ADVICE):
        y, yes, no = -1.12 * row, "yes", "no"
        passed, taken = bool(priced) and row < last, bool(priced) and row == last
        faded = bool(priced) and not taken
        if passed:
            least = min((of[name] for name in names), key=lambda price: price.total)
            needs = f"{least.total / 1e9:.0f} GB, budget {least.capacity / 1e9:.0f}"
            no = f"no: {f'slower, +{least.overhead:.0%}' if least.fits else needs}"
        if taken and choice is not None:
            yes = f"yes: +{choice.overhead:.0%}"
        box(axes, 0, y, 3.5, question, face="white", ink=INK if passed or not faded else MUTED)
        ink = INK if color == RECOMPUTE or faded else "white"
        box(axes, 4.5, y, 3.0, answer, face=color, ink=ink, alpha=0.25 if faded else 1)
        arrow(axes, (1.78, y), (2.97, y), yes, side="above", taken=taken)
        arrow(axes, (0, y - 0.4), (0, y - 0.73), no, side="right", taken=passed)
    y, faded = -1.12 * len(_ADVICE), choice is not None
    text = "A smaller model state per GPU:\nmore GPUs, or ZeRO-Offload"
    box(axes, 0, y, 3.5, text, face=WAIT, ink=INK, alpha=0.25 if faded else 1)
    axes.set_xlim(-1.9, 6.2)
    axes.set_ylim(y - 0.5, 0.5)
    return fig
