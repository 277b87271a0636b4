"""The collectives of a counted run: what each rank has issued, in order."""

import itertools
import math
from numbers import Real

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.style import INK, new_figure, style
from ddp_lab.launch.output import rank_color, text_color

MOST_MARKS = 60  # in a row, which a page still shows
_MARKS = {"all_reduce": "o", "broadcast": "D", "all_gather": "s", "reduce_scatter": "p", "all_to_all": "X",
          "barrier": "|", "send": ">", "recv": "<", "reduce": "v", "gather": "h", "scatter": "P"}  # fmt: skip


def counts(run, title=None, ops=None):
    """The collectives of a run with `count=True`: a row for each rank, a mark for each that it has issued, in order.

    The form is the op, the size grows with the bytes that the rank has handed in, on a log scale; where there is room
    the bytes stand below the row. Steps, where the script has logged them, are told apart by the ground behind them: a
    step stands in one place on all ranks, as wide as the rank needs that has issued the most in it.
    `ops`: draw these alone, such as ["all_reduce"]. `run`: a Run, or its table `run.collectives`, or rows of it.
    InputError for a run that was not counted, or if there is nothing to draw, or more than a page shows.
    """
    table = getattr(run, "collectives", run)
    inputs.table(table, "counts", ["rank", "step", "op", "bytes"], "a run with count=True, or rows of run.collectives")
    if ops is not None:
        ops = [ops] if isinstance(ops, str) else ops
        if not isinstance(ops, (list, tuple, set)):
            raise InputError(f'counts(): ops={inputs.brief(ops)} is no list. Give ops=["all_reduce"], or leave it out.')
        table = table[table["op"].isin(ops)]
    if not len(table):
        of = f" of {', '.join(map(str, ops))}" if ops else ""
        raise InputError(f"counts: the run has issued no collectives{of}")
    ranks = {int(rank): rows for rank, rows in table.groupby("rank")}
    blocks, places = _aligned(ranks)
    length = 1 + max(place for own in places.values() for place in own)
    if length > MOST_MARKS:
        raise InputError(
            f"counts: there are {length} collectives in a row, and a page shows {MOST_MARKS}. Draw some of the rows: "
            'counts(run.collectives.query("step < 3")), or some ops: counts(run, ops=["all_reduce"]).'
        )
    with style():
        figure, (axes,) = new_figure([title or "What each rank has issued"], size=(6.4, 0.5 * len(ranks) + 1.3))
        for row, (rank, rows) in enumerate(ranks.items()):
            for op, part in rows.assign(place=places[rank]).groupby("op"):
                sizes = [60 if op == "barrier" else _size(value) for value in part["bytes"]]
                look = {"linewidths": 2} if op == "barrier" else {"edgecolors": "none"}
                look |= {"color": rank_color(rank), "marker": _MARKS.get(op, "*")}
                axes.scatter(part["place"], [row] * len(part), sizes, **look)
            if length <= 16:
                for place, value in zip(places[rank], rows["bytes"], strict=True):
                    axes.text(place, row + 0.36, short(value), ha="center", va="center", fontsize=7.5)
        stepped = [row for row, rows in enumerate(ranks.values()) if rows["step"].notna().any()]
        _steps(axes, blocks, stepped)
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


class _Block:
    """The place of a step in the picture, the same on all ranks; None: of what belongs to no step."""

    def __init__(self, step):
        self.step, self.first, self.width = step, 0, 0


def _aligned(ranks):
    """([the block of each step], {rank: [place of each of its rows]}).

    A rank that has logged no step at all has its marks from the first place on, in no block.
    """
    blocks, found = [], {}
    for rank, rows in ranks.items():
        found[rank], at = [], -1
        steps = rows["step"].astype("object").where(rows["step"].notna(), None)
        for step, own in itertools.groupby(steps) if steps.notna().any() else []:
            at = _block(blocks, step, at + 1)
            marks = [(blocks[at], number) for number, _ in enumerate(own)]
            blocks[at].width = max(blocks[at].width, len(marks))
            found[rank] += marks
    for before, block in itertools.pairwise(blocks):
        block.first = before.first + before.width
    places = {rank: [block.first + number for block, number in marks] for rank, marks in found.items()}
    return blocks, {rank: places[rank] or list(range(len(rows))) for rank, rows in ranks.items()}


def _block(blocks, step, start):
    """The number of the first block of this step from `start` on; of a new one where there is none."""
    for at in range(start, len(blocks)):
        if blocks[at].step == step:
            return at
    at = start
    while at < len(blocks) and isinstance(step, Real) and isinstance(blocks[at].step, Real) and blocks[at].step < step:
        at += 1
    blocks.insert(at, _Block(step))
    return at


def _steps(axes, blocks, rows):
    """Shade every second step behind these rows, and write their numbers below."""
    from matplotlib.patches import Rectangle

    for block in blocks[::2] if len(blocks) > 1 else []:
        for row in rows:
            ground = Rectangle((block.first - 0.5, row - 0.5), block.width, 1, color=INK, alpha=0.12, zorder=0)
            ground.set(linewidth=0, antialiased=False)  # or a line would show where two rows meet
            axes.add_patch(ground)
    named = [block for block in blocks if block.step is not None]
    middles = [block.first + (block.width - 1) / 2 for block in named]
    axes.set_xticks(middles, [f"step {block.step}" for block in named])


def _legend(figure, ops):
    from matplotlib.lines import Line2D

    marks = []
    for op in ops:
        width = 2 if op == "barrier" else 0
        look = {"marker": _MARKS.get(op, "*"), "markersize": 7, "markeredgewidth": width}
        marks.append(Line2D([], [], linewidth=0, color=INK, **look))
    figure.legend(marks, list(ops), loc="outside lower left", ncols=5, frameon=False, handletextpad=0.1)
