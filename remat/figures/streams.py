"""Figures of chapter 4: two streams on a clock, and efficiency against bandwidth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from remat.chain import Backward, Drop, Forward
from remat.figures.style import GRADIENT, INK, KEEP, LIMIT, MUTED, OFFLOAD, RECOMPUTE, WAIT, figure, finish
from remat.replay import Event, Replay

_ROWS = {"compute": 1, "copy": 0}


def _colored(counted: Replay) -> list[tuple[Event, str]]:
    """Each event that takes time or waits, with its color."""
    seen: set[int] = set()
    colored = []
    for event in counted.events:
        if isinstance(event.action, Forward):
            colored.append((event, RECOMPUTE if event.action.stage in seen else KEEP))
            seen.add(event.action.stage)
        elif isinstance(event.action, Backward):
            colored.append((event, GRADIENT))
        elif not isinstance(event.action, Drop) or event.wait_s:  # a drop only shows if it waits for its copy
            colored.append((event, WAIT if isinstance(event.action, Drop) else OFFLOAD))
    return colored


def _streams(axes: Axes, counted: Replay, scale: float, end_s: float) -> None:
    waits = [event for event in counted.events if event.stream == "compute" and event.wait_s]
    axes.barh(
        [_ROWS["compute"]] * len(waits), [event.wait_s / scale for event in waits],
        left=[(event.start_s - event.wait_s) / scale for event in waits], height=0.62, color="white",
        edgecolor=WAIT, hatch="////", linewidth=0.7,
    )  # fmt: skip
    shown = [(event, color) for event, color in _colored(counted) if not isinstance(event.action, Drop)]
    axes.barh(
        [_ROWS[event.stream] for event, _ in shown],
        [(event.end_s - event.start_s) / scale for event, _ in shown],
        left=[event.start_s / scale for event, _ in shown], height=0.62, color=[color for _, color in shown],
        edgecolor="white", linewidth=0.7,
    )  # fmt: skip
    for event, color in shown:
        if isinstance(event.action, Forward | Backward) and event.end_s - event.start_s > 0.012 * end_s:
            axes.text(
                (event.start_s + event.end_s) / 2 / scale, _ROWS["compute"], str(event.action.stage),
                ha="center", va="center", color="white" if color == KEEP else INK, fontsize=7.5, clip_on=True,
            )  # fmt: skip


def stream_timelines(
    replays: Mapping[str, Replay], *, seconds: float = 1e-3, seconds_name: str = "ms", memory: float = 1e9,
    memory_name: str = "GB", end_s: float | None = None,
) -> Figure:  # fmt: skip
    """Draw both streams of some plans on one clock, with the memory of device and host below.

    Args:
        replays: title -> what replay counted.
        seconds: seconds in one unit of the clock.
        seconds_name: what that unit is called.
        memory: bytes in one unit of memory.
        memory_name: what that unit is called.
        end_s: seconds at the end of the clock's axis; the longest of the plans if left out.
    """
    heights = [ratio for _ in replays for ratio in (1.0, 0.9)]
    end_s = max(counted.time_s for counted in replays.values()) if end_s is None else end_s
    fig, axes = figure(
        height=2.45 * len(replays) + 0.5, rows=2 * len(replays), sharex=True, height_ratios=heights
    )
    for (title, counted), streams, below in zip(replays.items(), axes[::2], axes[1::2], strict=True):
        _streams(streams, counted, seconds, end_s)
        streams.set_yticks([1, 0], ["compute", "copy"])
        streams.set_ylim(-0.5, 1.5)
        streams.tick_params(axis="y", length=0)
        stall = f"waits {counted.stall_s / seconds:.1f} of {counted.time_s / seconds:.1f} {seconds_name}"
        finish(streams, x="", y="", title=f"{title}: {stall}", grid="")
        # Of several changes at one time the last is drawn, so that a buffer handed on draws no spike.
        last = {moment.time_s: moment for moment in counted.moments}
        for label, color, style, values in (
            ("device", KEEP, "-", [moment.device / memory for moment in last.values()]),
            ("host", OFFLOAD, "--", [moment.host / memory for moment in last.values()]),
        ):
            below.step(
                [time / seconds for time in last],
                values,
                where="post",
                color=color,
                linestyle=style,
                linewidth=1.5,
                label=label,
            )
        below.set_ylim(bottom=0)
        below.legend(loc="upper right", ncols=2, fontsize=8, frameon=False)
        finish(below, x="", y=memory_name, grid="y")
    axes[-1].set_xlabel(f"time, {seconds_name}")
    axes[0].set_xlim(0, end_s / seconds)
    kinds = [("forward", KEEP), ("forward again", RECOMPUTE), ("backward", GRADIENT), ("copy", OFFLOAD)]
    used = {color for counted in replays.values() for _, color in _colored(counted)}
    handles = [Patch(color=color, label=name) for name, color in kinds if color in used]
    handles.append(Patch(facecolor="white", edgecolor=WAIT, hatch="////", label="compute waits for a copy"))
    fig.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    return fig


def efficiency_curves(
    bandwidths: Sequence[float], curves: Mapping[str, Sequence[float]], *, links: Mapping[str, float]
) -> Figure:
    """Draw efficiency against the bandwidth of the link, one curve a kind of data.

    Args:
        bandwidths: bytes/s, rising.
        curves: kind of data -> efficiency at each bandwidth, 0 to 1.
        links: name -> bytes/s, marked on the axis.
    """
    fig, (axes,) = figure(height=3.4)
    for (name, values), color, style in zip(
        curves.items(), [OFFLOAD, KEEP, RECOMPUTE], ["-", "--", "-."], strict=False
    ):
        axes.plot([b / 1e9 for b in bandwidths], values, color=color, linestyle=style, label=name)
    for name, bandwidth in links.items():
        axes.axvline(bandwidth / 1e9, color=MUTED, linewidth=0.9, linestyle=":")
        axes.text(bandwidth / 1e9, 1.035, name, color=MUTED, fontsize=8.5, ha="center", va="bottom")
    axes.axhline(0.5, color=LIMIT, linewidth=0.9, linestyle="--")
    axes.text(bandwidths[0] / 1e9, 0.51, "half the time is copying", color=LIMIT, fontsize=8.5, va="bottom")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.03)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(loc="lower right")
    finish(axes, x="bandwidth of the link, GB/s per direction", y="efficiency", grid="both")
    return fig
