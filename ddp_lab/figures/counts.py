"""The collectives of a counted run: what each rank has issued, in order."""

import math

from ddp_lab.errors import InputError
from ddp_lab.figures.style import INK, new_figure, style
from ddp_lab.launch.output import rank_color, text_color

MOST_MARKS = 60  # in a row, which a page still shows
_MARKS = {"all_reduce": "o", "broadcast": "D", "all_gather": "s", "reduce_scatter": "p", "all_to_all": "X",
          "barrier": "|", "send": ">", "recv": "<", "reduce": "v", "gather": "h", "scatter": "P"}  # fmt: skip


def counts(run, title=None, ops=None):
    """The collectives of a run with `count=True`: a row for each rank, a mark for each that it has issued, in order.

    The form is the op, the size grows with the bytes that the rank has handed in, on a log scale; where there is room
    the bytes stand below the row. Steps, where the script has logged them, are told apart by the ground behind them.
    `ops`: draw these alone, such as ["all_reduce"]. `run`: a Run, or its table `run.collectives`, or rows of it.
    InputError for a run that was not counted, or if there is nothing to draw, or more than a page shows.
    """
    table = getattr(run, "collectives", run)
    if ops is not None:
        ops = [ops] if isinstance(ops, str) else list(ops)
        table = table[table["op"].isin(ops)]
    if not len(table):
        raise InputError("counts: the run has issued no collectives" + (f" of {', '.join(ops)}" if ops else ""))
    ranks = {int(rank): rows for rank, rows in table.groupby("rank")}
    length = max(map(len, ranks.values()))
    if length > MOST_MARKS:
        raise InputError(
            f"counts: {length} collectives on a rank, and a page shows {MOST_MARKS}. Draw some of the rows: "
            'counts(run.collectives.query("step < 3")), or some ops: counts(run, ops=["all_reduce"]).'
        )
    with style():
        figure, (axes,) = new_figure([title or "What each rank has issued"], size=(6.4, 0.5 * len(ranks) + 1.3))
        for row, (rank, rows) in enumerate(ranks.items()):
            for op, part in rows.assign(place=range(len(rows))).groupby("op"):
                sizes = [60 if op == "barrier" else _size(value) for value in part["bytes"]]
                look = {"linewidths": 2} if op == "barrier" else {"edgecolors": "none"}
                look |= {"color": rank_color(rank), "marker": _MARKS.get(op, "*")}
                axes.scatter(part["place"], [row] * len(part), sizes, **look)
            if length <= 16:
                for place, value in enumerate(rows["bytes"]):
                    axes.text(place, row + 0.36, short(value), ha="center", va="center", fontsize=7.5)
        _steps(axes, max(ranks.values(), key=len))
        axes.set(xlim=(-0.7, length - 0.3), ylim=(len(ranks) - 0.4, -0.6))
        axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks], fontweight="bold")
        for label, rank in zip(axes.get_yticklabels(), ranks, strict=True):
            label.set_color(text_color(rank_color(rank)))
        axes.set_xlabel("collectives in the order of their calls" + (": bytes handed in" if length <= 16 else ""))
        _legend(figure, dict.fromkeys(table["op"]))
    return figure


def _size(value):
    """The area of a mark for so many bytes, in square points: 4 points wide for none, 4 more for a thousand times."""
    return (4 + 4 / 3 * math.log10(value + 1)) ** 2


def short(value):
    """Bytes in a few letters: 40 B, 1.6 kB, 67 MB (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 9.95 else f"{value:.1f} {unit}"
        value /= 1000


def _steps(axes, rows):
    """Shade every second step of these rows, and write their numbers below."""
    blocks = []
    for place, step in enumerate(rows["step"].astype("object").where(rows["step"].notna(), None)):
        if not blocks or blocks[-1][0] != step:
            blocks.append([step, place, place])
        blocks[-1][2] = place
    for first, last in [block[1:] for block in blocks[::2]] if len(blocks) > 1 else []:
        axes.axvspan(first - 0.5, last + 0.5, color=INK, alpha=0.12, linewidth=0, zorder=0)
    named = [block for block in blocks if block[0] is not None]
    axes.set_xticks([(first + last) / 2 for _, first, last in named], [f"step {step}" for step, *_ in named])


def _legend(figure, ops):
    from matplotlib.lines import Line2D

    marks = []
    for op in ops:
        width = 2 if op == "barrier" else 0
        look = {"marker": _MARKS.get(op, "*"), "markersize": 7, "markeredgewidth": width}
        marks.append(Line2D([], [], linewidth=0, color=INK, **look))
    figure.legend(marks, list(ops), loc="outside lower left", ncols=5, frameon=False, handletextpad=0.1)
