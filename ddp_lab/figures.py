"""The course's pictures, in one style that reads on light and dark pages. matplotlib is imported when one is drawn.

Each function takes a run, or anything with a `.frame()` (a pandas table of rank, step, name, value), and
returns a matplotlib Figure, which a notebook shows and `.savefig(path)` writes.
"""

import io
import math
from contextlib import contextmanager

from ddp_lab.errors import InputError
from ddp_lab.launch.output import RANK_COLORS, rank_color

__all__ = ["INK", "RANK_COLORS", "bars", "curves", "rank_color", "style"]

INK = "#6B7686"
"""Text and axes: a grey-blue with a contrast above 4 both to white and to JupyterLab's dark page."""

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
    same = len(values) > 1 and all(value == values[min(values)] for value in values.values())
    with style():
        figure, axes = _new(title or f"{name} on each rank")
        for place, (rank, (steps, numbers)) in enumerate(values.items()):
            # One line over another would hide it: where all coincide, each draws its own pieces of a striped line.
            stripes = (place * 3, (3, 3 * (len(values) - 1))) if same else "solid"
            marker = "o" if len(steps) == 1 else None  # a line of one point would not be seen
            axes.plot(steps, numbers, color=rank_color(rank), linestyle=stripes, marker=marker, label=f"rank {rank}")
        axes.set(xlabel="step", ylabel=name)
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        _label_ends(axes)
    return figure


def bars(run, name, title=None):
    """One bar per rank, with its number: the last that it logged as `name`.

    InputError if no rank has logged numbers under that name.
    """
    values = _values(run, name)
    with style():
        figure, axes = _new(title or f"{name} on each rank")
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


def _new(title):
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that shows itself, also where pyplot was never imported; pyplot would show it a second time."""

        def _repr_png_(self):
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=self.dpi)
            return content.getvalue()

    figure = Picture()
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


def _label_ends(axes):
    """Write each line's label behind its end, in its colour, moved apart where ends are close."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.075  # the height of a text in a figure of this size
    ends = []
    for place, line in enumerate(axes.lines):
        finite = [y for y in line.get_ydata() if math.isfinite(y)]
        ends.append((finite[-1] if finite else low, -place, line))
    height = -math.inf
    for y, _, line in sorted(ends, key=lambda end: end[:2]):
        height = max(y, height + gap)
        place = (axes.get_xlim()[1], height)
        axes.annotate(line.get_label(), place, color=line.get_color(), va="center", fontweight="bold")
