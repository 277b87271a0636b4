"""The course's pictures, in one style that reads on light and dark pages. matplotlib is imported when one is drawn.

Each function takes a run, or anything with a `.frame()` (a pandas table of rank, step, name, value), and
returns a matplotlib Figure, which a notebook shows and `.savefig(path)` writes. Only `table` is about a table of texts.
"""

import io
import math
import textwrap
from contextlib import contextmanager

from ddp_lab.errors import InputError
from ddp_lab.launch.output import RANK_COLORS, rank_color, text_color

__all__ = ["BROKEN", "FINE", "INK", "RANK_COLORS", "apart", "bars", "curves", "rank_color", "samples", "style", "table",
           "twin"]  # fmt: skip

INK = "#6B7686"
"""Text and axes: a grey-blue with a contrast above 4 both to white and to JupyterLab's dark page."""

FINE, BROKEN = "#3A8F85", "#B8336A"
"""What is as it should be and what is not, where no rank is meant; the place in the picture says the same."""

MOST_SAMPLES = 64  # boxes in a row, which a page still shows

_STYLE = {
    "figure.figsize": (6.4, 3.2),
    "figure.dpi": 110,
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
    "savefig.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.spines.bottom": False,
    "axes.prop_cycle": f"cycler('color', {list(RANK_COLORS)})",
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.color": INK,
    "font.size": 10,
    "lines.linewidth": 2,
}


@contextmanager
def style():
    """`with figures.style():` draws the pictures made inside it in the style of the course; others stay as they are."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def curves(run, name="loss", title=None):
    """One line per rank: what it logged as `name`, over its steps; where it is NaN the line has a gap.

    InputError if no rank has logged numbers under that name.
    """
    values = _values(run, name)
    with style():
        figure, (axes,) = _new([title or f"{name} on each rank"])
        _lines(axes, values)
        axes.set(ylabel=name)
        _label_ends(axes)
    return figure


def bars(run, name, title=None):
    """One bar per rank, with its number: the last that it logged as `name`.

    InputError if no rank has logged numbers under that name.
    """
    values = _values(run, name)
    with style():
        figure, (axes,) = _new([title or f"{name} on each rank"])
        for place, (rank, (_, numbers)) in enumerate(values.items()):
            number = numbers[-1]
            height = number if math.isfinite(number) else 0
            axes.bar(place, height, color=rank_color(rank), width=0.6, label=f"rank {rank}")
            where = {"ha": "center", "va": "bottom" if height >= 0 else "top", "fontweight": "bold"}
            axes.annotate(
                f"{number:.4g}", (place, height), (0, 3 if height >= 0 else -3), textcoords="offset points", **where
            )
        axes.set_xticks(range(len(values)), [f"rank {rank}" for rank in values])
        axes.set(ylabel=name, xlim=(-0.6, max(len(values), 3) - 0.4))
        axes.margins(y=0.15)
    return figure


def apart(panels, share=True):
    """How far the ranks are from each other: beside each other a panel for each entry of `{title: (run, name)}`.

    One line per rank, what it logged as `name` over its steps; what lies between the ranks is shaded, and the
    distance in the last step that all have logged is written there. `(run, name, label)` writes `label` at the axis,
    where the name alone says too little. Panels of the same `name` share their scale, unless `share=False`.
    InputError as in curves(), or if there is no panel.
    """
    if not panels:
        raise InputError("apart({}): there is nothing to draw. Give {title: (run, name)}.")
    found = {title: _values(run, name) for title, (run, name, *_) in panels.items()}
    labels = [panel[-1] for panel in panels.values()]
    share = share and len({name for _, name, *_ in panels.values()}) == 1
    with style():
        size = (max(6.4, 3.6 * len(panels)), 3.2)
        figure, all_axes = _new(list(panels), len(panels), size, sharey=share)
        for axes, values in zip(all_axes, found.values(), strict=True):
            _lines(axes, values)
            columns = [dict(zip(*value, strict=True)) for value in values.values()]
            steps = sorted(set(columns[0]).intersection(*columns))
            rows = [[column[step] for column in columns] for step in steps]
            low, high = [min(row) for row in rows], [max(row) for row in rows]
            axes.fill_between(steps, low, high, color=INK, alpha=0.2, linewidth=0)
            if steps and len(columns) > 1:
                distance = high[-1] - low[-1]
                text = f"{distance:.2g} apart" if distance else "no distance"
                spot = {"textcoords": "offset points", "ha": "right", "va": "top", "fontweight": "bold"}
                axes.annotate(text, (1, 1), (-12, -2), xycoords="axes fraction", **spot)
            axes.margins(y=0.2)
        for axes, label in list(zip(all_axes, labels, strict=True))[: 1 if share else None]:
            axes.set_ylabel(label)
        for axes in all_axes:  # only now: where panels share a scale, each has changed it
            _label_ends(axes)
    return figure


def samples(runs):
    """Which rank has read which samples: below each other a panel for each entry of `{title: run}`.

    Drawn from the lists of sample numbers, from 0 on, that the ranks have logged as `samples`, one list a step. A box
    is a sample that this rank has read, the number in it the step (several, where it has read it several times); an
    empty box is one that it has not. InputError if there is no panel, or no rank of a run has logged such lists.
    """
    if not runs:
        raise InputError("samples({}): there is nothing to draw. Give {title: run}.")
    reads = {title: _reads(run) for title, run in runs.items()}
    count = 1 + max(sample for ranks in reads.values() for steps in ranks.values() for sample in steps)
    heights = [len(ranks) for ranks in reads.values()]
    size = (6.4, 0.36 * sum(heights) + 0.5 * len(heights) + 0.5)
    with style():
        figure, all_axes = _new(list(reads), size=size, heights=heights, sharex=True)
        for axes, ranks in zip(all_axes, reads.values(), strict=True):
            for row, (rank, steps) in enumerate(ranks.items()):
                for sample in range(count):
                    _box(axes, sample, row, steps.get(sample, []), rank_color(rank))
            axes.set(xlim=(-0.55, count - 0.45), ylim=(len(ranks) - 0.45, -0.55))
            axes.set_xticks(range(count))
            axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks], fontweight="bold")
            for label, rank in zip(axes.get_yticklabels(), ranks, strict=True):
                label.set_color(text_color(rank_color(rank)))
        axes.set_xlabel("sample (in its box: the step in which it is read)")
    return figure


def twin(runs, name="weights_to_twin", rounding=1e-12, title="How far from one process with the whole batch"):
    """How far several runs are from what they should equal: a row for each entry of `{label: run}`, a dot per step.

    Drawn is the largest difference that any rank has logged as `name` in a step, on a log scale; the number at the
    right is that of the last step. Up to `rounding` the runs count as equal. A difference of exactly 0, which has no
    place on a log scale, lies on the left edge, marked 0.
    InputError as in curves(), or if there is no run.
    """
    if not runs:
        raise InputError("twin({}): there is nothing to draw. Give {label: run}.")
    found = {label: _values(run, name) for label, run in runs.items()}
    floor = rounding / 1e6
    with style():
        figure, (axes,) = _new([title], size=(6.4, 0.3 * len(runs) + 1.3))
        for row, (label, values) in enumerate(found.items()):
            largest = {}
            for steps, numbers in values.values():
                for step, number in zip(steps, numbers, strict=True):
                    largest[step] = max(abs(number), largest.get(step, 0))
            differences = [largest[step] for step in sorted(largest)]
            color = FINE if max(differences) <= rounding else BROKEN
            shown = [max(difference, floor) for difference in differences]
            axes.plot(shown, [row] * len(shown), "o-", color=color, markersize=4, linewidth=1, alpha=0.8, label=label)
            axes.annotate(
                f"{differences[-1]:.1g}", (1.01, row), xycoords=axes.get_yaxis_transform(), color=color,
                va="center", fontweight="bold",
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set(xlim=(floor / 2, 30), ylim=(len(runs) - 0.5, -0.5))
        axes.axvspan(floor / 2, rounding, color=INK, alpha=0.12, linewidth=0)
        ticks = [10.0**power for power in range(round(math.log10(floor)) + 3, 2, 3)]
        axes.set_xticks([floor, *ticks], ["0", *(f"{tick:g}" for tick in ticks)])
        axes.minorticks_off()
        axes.set_yticks(range(len(runs)), list(runs))
        shaded = f"shaded: rounding, up to {rounding:.0e}; left edge: exactly 0"
        axes.set_xlabel(f"largest difference of a rank from the twin, a dot for each step, log scale\n({shaded})")
        above = {"xycoords": axes.transAxes, "textcoords": "offset points", "va": "bottom", "fontsize": 9}
        axes.annotate("last step", (1.01, 1), (0, 1), **above)
    return figure


def table(frame):
    """A pandas table of texts, shown with its columns beginning at the left and its texts as they are, no HTML."""
    start = {"selector": "th, td", "props": [("text-align", "left")]}
    shown = frame.style.format(escape="html").set_table_styles([start])
    return shown.format_index(escape="html").format_index(escape="html", axis="columns")


def _values(run, name):
    """{rank: (steps, numbers)} of what the ranks logged as `name`, in order."""
    frame = run.frame()
    rows = frame[frame["name"] == name]
    values = {}
    for rank, step, value in zip(rows["rank"], rows["step"], rows["value"], strict=True):
        if isinstance(value, (int, float)):
            steps, numbers = values.setdefault(int(rank), ([], []))
            steps.append(step)
            numbers.append(float(value))
    if not values:
        logged = ", ".join(dict.fromkeys(map(str, frame["name"]))) or "nothing"
        raise InputError(f"no rank has logged numbers as {name!r}; logged: {logged}")
    return dict(sorted(values.items()))


def _reads(run):
    """{rank: {sample: [steps in which it was read]}} of the lists that the ranks logged as `samples`."""
    frame = run.frame()
    rows = frame[frame["name"] == "samples"]
    reads = {int(rank): {} for rank in sorted(set(frame["rank"]))}
    for rank, step, listed in zip(rows["rank"], rows["step"], rows["value"], strict=True):
        for sample in listed if isinstance(listed, list) else []:
            if isinstance(sample, (int, float)) and 0 <= sample < MOST_SAMPLES and sample == int(sample):
                reads[int(rank)].setdefault(int(sample), []).append(step)
    if not any(reads.values()):
        raise InputError("no rank has logged sample numbers: worker.log(step=step, samples=[...]), one list a step")
    return reads


def _box(axes, column, row, steps, color):
    from matplotlib.patches import FancyBboxPatch

    box = FancyBboxPatch((column - 0.37, row - 0.37), 0.74, 0.74, boxstyle="round,pad=0,rounding_size=0.12")
    if steps:
        box.set(facecolor=color, edgecolor="none")
        axes.text(column, row, ",".join(map(str, steps)), color=_on(color), ha="center", va="center", fontweight="bold",
                  fontsize=9 if len(steps) == 1 else 6)  # fmt: skip
    else:
        box.set(facecolor="none", edgecolor=INK, alpha=0.35, linewidth=0.8)
    axes.add_patch(box)


def _on(color):
    """Black or white, whichever reads better on this colour."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#FFFFFF" if 0.3 * red + 0.59 * green + 0.11 * blue < 100 else "#111111"


def _lines(axes, values):
    """One line per rank of {rank: (steps, numbers)}."""
    same = len(values) > 1 and all(value == values[min(values)] for value in values.values())
    for place, (rank, (steps, numbers)) in enumerate(values.items()):
        # One line over another would hide it: where all coincide, each draws its own pieces of a striped line.
        stripes = (place * 3, (3, 3 * (len(values) - 1))) if same else "solid"
        marker = "o" if len(steps) == 1 else None  # a line of one point would not be seen
        axes.plot(steps, numbers, color=rank_color(rank), linestyle=stripes, marker=marker, label=f"rank {rank}")
    axes.set(xlabel="step")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def _new(titles, columns=1, size=None, heights=None, **share):
    """(figure, its axes): a panel for each title, in so many columns."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that shows itself, also where pyplot was never imported; pyplot would show it a second time."""

        def _repr_png_(self):
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=self.dpi)
            return content.getvalue()

    figure = Picture(figsize=size) if size else Picture()
    grid = {"height_ratios": heights} if heights else {}
    rows = len(titles) // columns
    panels = list(figure.subplots(rows, columns, squeeze=False, gridspec_kw=grid, **share).flat)
    letters = int(10 * figure.get_figwidth() / columns) - 8  # of a title, bold, over one panel
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(textwrap.fill(title, letters))
    return figure, panels


def _label_ends(axes):
    """Write each line's label behind its end, in its colour, moved apart where ends are close."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.075  # the height of a text in a figure of this size
    ends = []
    for place, line in enumerate(axes.lines):
        finite = [y for y in line.get_ydata() if math.isfinite(y)]
        ends.append((finite[-1] if finite else low, -place, line))
    ends.sort(key=lambda end: end[:2])
    heights, height = [], -math.inf
    for y, _, _ in ends:
        height = max(y, height + gap)
        heights.append(height)
    top = high - gap / 2
    for number in reversed(range(len(heights))):  # what was pushed out at the top comes down again
        heights[number] = min(heights[number], top)
        top = heights[number] - gap
    for height, (_, _, line) in zip(heights, ends, strict=True):
        place = (axes.get_xlim()[1], height)
        axes.annotate(line.get_label(), place, color=line.get_color(), va="center", fontweight="bold")
