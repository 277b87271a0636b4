"""Times against sizes: what was measured, and the line that was fitted to it."""

import math

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.style import BROKEN, FINE, INK, new_figure, style
from ddp_lab.meters.cost import Cost

COLORS, MARKERS = ["#8A6FD1", FINE, "#A8762A", BROKEN, INK], ["o", "s", "^", "D", "v"]
"""Of the lines, which are no ranks."""


def cost_fit(times, cost, title="Time of an all-reduce: a floor, and a slope"):
    """The times that were measured, dots, and the line of a Cost, with its two parts, on log scales.

    times: `{size in bytes: seconds}`. InputError if it is empty, or has what a log scale has not.
    """
    if not inputs.line(times, "cost_fit", "{size in bytes: seconds}", above=0):
        raise InputError("cost_fit({}, ...): there is nothing to draw. Give {size in bytes: seconds}.")
    if not isinstance(cost, Cost) or not all(0 <= part < math.inf for part in cost):
        raise InputError(f"cost_fit(): {inputs.brief(cost)} is no cost. Give fit(sizes, seconds), after the times.")
    sizes = sorted(times)
    dense = [sizes[0] * (sizes[-1] / sizes[0]) ** (step / 100) for step in range(101)]
    with style():
        figure, (axes,) = new_figure([title], size=(6.8, 3.6))
        axes.plot(dense, [cost.seconds(size) for size in dense], color=FINE, label="fit", zorder=1)
        axes.plot(sizes, [times[size] for size in sizes], "o", color=INK, label="measured", zorder=2)
        parts = {
            f"latency: {duration(cost.alpha)} a call": [cost.alpha] * len(dense),
            f"{1e9 * cost.beta:.2g} ns a byte": [cost.beta * size for size in dense],
        }
        for number, (label, part) in enumerate(parts.items()):
            if not max(part) > 0:
                continue
            axes.plot(dense, part, linestyle=(0, (2, 2)), color=FINE, linewidth=1.2, alpha=0.8, label=label)
            spot = {"textcoords": "offset points", "color": FINE, "fontweight": "bold", "fontsize": 9}
            if number == 0:
                axes.annotate(label, (dense[0], part[0]), (0, -12), va="top", **spot)
            else:
                below = dense[-1], max(part) / 16  # the line has been higher by where this text begins
                axes.annotate(label, below, (0, 0), ha="right", va="top", **spot)
        low = min([time for time in times.values()] + [cost.alpha or math.inf])
        axes.set(xscale="log", yscale="log", ylim=(low / 3, max(times.values()) * 2))
        axes.set(xlabel="bytes in the tensor", ylabel="time")
        _ticks(axes, sizes)
        axes.legend(handles=axes.lines[1::-1], frameon=False, loc="upper left", labelcolor=INK)
    return figure


def times(panels, mark=None):
    """Times against sizes, on log scales: a panel for each entry of `{title: {label: {size in bytes: seconds}}}`.

    Panels share their scales, and a label has one colour and mark in all of them. mark: `{title: (size, text)}` draws
    an upright line at this size. InputError if there is nothing to draw, or what a log scale has not.
    """
    form = "{title: {label: {size in bytes: seconds}}}"
    for lines in inputs.panels(panels, "times", form).values():
        for line in inputs.panels(lines, "times", form).values():
            inputs.line(inputs.panels(line, "times", form), "times", form, above=0)
    mark = inputs.panels(mark, "times", "mark={title: (size, text)}") if mark else {}
    for title, spot in mark.items():
        if title not in panels or not isinstance(spot, (tuple, list)) or len(spot) != 2:
            raise InputError(f"times(): mark={inputs.brief(mark)}. Give mark={{title of a panel: (size, text)}}.")
        inputs.number(spot[0], "times", "mark={title: (size, text)}", above=0)
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    if len(labels) > len(COLORS):
        raise InputError(f"times(): {len(labels)} lines, and there are colours for {len(COLORS)}.")
    with style():
        size = (5.2 * len(panels), 3.8)
        figure, all_axes = new_figure(list(panels), len(panels), size, sharex=True, sharey=True)
        for axes, lines in zip(all_axes, panels.values(), strict=True):
            for label, line in lines.items():
                number = labels.index(label)
                look = {"color": COLORS[number], "marker": MARKERS[number], "markersize": 5}
                axes.plot(sorted(line), [line[size] for size in sorted(line)], label=label, **look)
            axes.set(xscale="log", yscale="log", xlabel="bytes in the tensor")
        all_axes[0].set_ylabel("time")
        sizes = sorted({size for lines in panels.values() for line in lines.values() for size in line})
        for axes, title in zip(all_axes, panels, strict=True):  # only now are the scales known
            _ticks(axes, sizes)
            _label_ends(axes)
            if title in mark:
                at, text = mark[title]
                axes.axvline(at, color=INK, linewidth=1, linestyle=":")
                spot = {"textcoords": "offset points", "va": "top", "ha": "right", "fontsize": 9}
                axes.annotate(text, (at, axes.get_ylim()[1]), (-4, 0), **spot)
    return figure


def duration(seconds):
    """`85 µs`, `1.2 ms`, `3 s`."""
    units = [(1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")]
    unit, name = next((unit for unit in units if seconds >= unit[0]), units[-1])
    return f"{float(f'{seconds / unit:.2g}'):g} {name}"


def volume(size):
    """`512 B`, `4 KiB`, `1 MiB`."""
    units = [(2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")]
    unit, name = next((unit for unit in units if size >= unit[0]), units[-1])
    return f"{size / unit:.3g} {name}"


def _ticks(axes, sizes):
    shown = sizes if len(sizes) <= 5 else sizes[::2]
    axes.set_xticks(shown, [volume(size) for size in shown])
    low, high = axes.get_ylim()
    ticks = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    axes.set_yticks(ticks, [duration(tick) for tick in ticks])
    axes.set_ylim(low, high)
    axes.minorticks_off()


def _label_ends(axes):
    """Each line's label behind its end, moved apart where ends are close: style.label_ends on a log scale."""
    low, high = (math.log10(limit) for limit in axes.get_ylim())
    gap = (high - low) * 0.065
    height = -math.inf
    for line in sorted(axes.lines, key=lambda line: line.get_ydata()[-1]):
        height = max(math.log10(line.get_ydata()[-1]), height + gap)
        spot = {"textcoords": "offset points", "color": line.get_color(), "va": "center", "fontweight": "bold"}
        axes.annotate(line.get_label(), (line.get_xdata()[-1], 10**height), (7, 0), **spot)
