"""The style of all pictures, and the pieces that they are made of. matplotlib is imported when one is drawn."""

import io
import math
import textwrap
from contextlib import contextmanager

from ddp_lab.launch.output import RANK_COLORS

INK = "#6B7686"
"""Text and axes: a grey-blue with a contrast above 4 both to white and to JupyterLab's dark page."""

FINE, BROKEN = "#3A8F85", "#B8336A"
"""What is as it should be and what is not, where no rank is meant; the place in the picture says the same."""

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


def new_figure(titles, columns=1, size=None, heights=None, **share):
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
        axes.set_title(textwrap.fill(str(title), letters))
    return figure, panels


def label_ends(axes):
    """Write each line's label behind its end, in its colour, moved apart where ends are close.

    As in matplotlib's legends, a label that begins with _ is left out.
    """
    low, high = axes.get_ylim()
    gap = (high - low) * 0.075  # the height of a text in a figure of this size
    ends = []
    for place, line in enumerate(line for line in axes.lines if not line.get_label().startswith("_")):
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


def text_on(color):
    """Black or white, whichever reads better on this colour."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#FFFFFF" if 0.3 * red + 0.59 * green + 0.11 * blue < 100 else "#111111"
