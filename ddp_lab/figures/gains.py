"""What is gained, or lost, against one way of doing it: a box for each other way under each condition."""

import statistics

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.costs import duration
from ddp_lab.figures.style import BROKEN, FINE, INK, new_figure, style

MUCH = 1.25
"""A factor between the times from which a box is filled; below, it has the colour as its edge."""


def gains(measured, than, title="Which way is faster, and where"):
    """Times of several ways under several conditions, compared with those of the way `than`: a row for each condition.

    measured: `{condition: {way: [seconds, ...]}}`, with equally many times in each list: those at the same place were
    measured one after the other, and are compared with each other. A box has the median of its times, and of their
    ratios to those of `than`. Where all ratios are on one side of 1 it has a colour, one where the way is faster and
    another where it is slower; where the factor is large, it is filled with it. Where they are not, or where there is
    one alone, it is undecided: its edge is broken, and the spread stands in it. InputError for anything else.
    """
    form = "{condition: {way: [seconds, ...]}}"
    for ways in inputs.panels(measured, "gains", form).values():
        for seconds in inputs.panels(ways, "gains", form).values():
            if not isinstance(seconds, (list, tuple)) or not seconds:
                raise InputError(f"gains(): {inputs.brief(seconds)} is no list of times. Give {form}.")
            for time in seconds:
                inputs.number(time, "gains", form, above=0)
        if than not in ways:
            raise InputError(f"gains(): there is no {than!r} among {', '.join(map(str, ways))}, to compare with.")
        if len({len(seconds) for seconds in ways.values()}) > 1:
            raise InputError("gains(): times are compared in pairs. Give equally many for each way of a condition.")
    columns = list(dict.fromkeys(way for ways in measured.values() for way in ways))
    with style():
        size = (max(4.6, 1.25 * len(columns) + 1.4), 0.82 * len(measured) + 0.9)
        figure, (axes,) = new_figure([title], size=size)
        for row, ways in enumerate(measured.values()):
            for way, seconds in ways.items():
                _box(axes, columns.index(way), row, seconds, ways[than], way == than)
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(measured) - 0.5, -0.5))
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(measured)), measured)
        axes.set_xlabel(f"× the time with {than!r}: below 1 is faster; ≈ is undecided")
    return figure


def _box(axes, column, row, seconds, base, is_base):
    from matplotlib.patches import FancyBboxPatch

    ratios = [one / other for one, other in zip(seconds, base, strict=True)]
    ratio, decided = statistics.median(ratios), decides(ratios)
    box = FancyBboxPatch((column - 0.46, row - 0.4), 0.92, 0.8, boxstyle="round,pad=0,rounding_size=0.08")
    color, ink = FINE if ratio < 1 else BROKEN, INK
    if decided and max(ratio, 1 / ratio) >= MUCH:
        box.set(facecolor=color, edgecolor=color)
        ink = "#FFFFFF"
    elif decided:
        box.set(facecolor="none", edgecolor=color, linewidth=2)
    else:
        box.set(facecolor="none", edgecolor=INK, linewidth=0.8, linestyle="-" if is_base else (0, (2, 2)))
    axes.add_patch(box)
    look = {"ha": "center", "va": "center", "color": ink}
    axes.text(column, row - 0.13, duration(statistics.median(seconds)), fontweight="bold", **look)
    said = "" if is_base else f"× {ratio:.2f}" if decided else f"≈ {min(ratios):.2f} to {max(ratios):.2f}"
    axes.text(column, row + 0.2, said, fontsize=8, **look)


def decides(ratios):
    """Whether these ratios of times, two at least, are all below 1 or all above."""
    return len(ratios) > 1 and (max(ratios) < 1 or min(ratios) > 1)
