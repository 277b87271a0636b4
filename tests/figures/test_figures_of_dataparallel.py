"""The pictures of DataParallel: what is drawn is what the tables hold."""

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from ddp_lab import figures
from ddp_lab.errors import InputError
from ddp_lab.figures.dataparallel import KINDS, _short

LEDGER = pd.DataFrame({
    "device": [0, 1, 2] * 2,
    "phase": ["replicate"] * 3 + ["reduce"] * 3,
    "bytes_in": [0, 1000, 1000, 2000, 0, 0],
    "bytes_out": [2000, 0, 0, 0, 1000, 1000],
})  # fmt: skip


def peak(devices, **columns):
    table = pd.DataFrame({kind: [0] * devices for kind in KINDS} | columns)
    return table.assign(total=table.sum(axis="columns"))


def heights(bars):
    return [round(bar.get_height()) for bar in bars]


def test_phases_draws_what_was_received_upward_and_what_was_sent_downward():
    figure = figures.phases(LEDGER, title="one step")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["replicate", "reduce"]
    for axes, (_, rows) in zip(figure.axes, LEDGER.groupby("phase", sort=False), strict=True):
        bars = sorted(axes.patches, key=lambda bar: bar.get_x())
        expected = [value for pair in zip(rows["bytes_in"], -rows["bytes_out"], strict=True) for value in pair]
        assert heights(bars) == expected
        assert [to_hex(bar.get_facecolor()) for bar in bars[::2]] == ["#0072b2", "#e69f00", "#009e73"]  # as ranks
        assert sorted(text.get_text() for text in axes.texts) == ["1k", "1k", "2k"]  # zeros have no number
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    first = figure.axes[0]
    assert first.get_ylabel() == "bytes: sent below, received above"  # read upward: sent below, received above
    heights_named = dict(zip(first.get_yticks(), [label.get_text() for label in first.get_yticklabels()], strict=True))
    assert heights_named == {-2000: "2k", 0: "0", 2000: "2k"}
    assert figure._suptitle.get_text() == "one step"


def test_held_stacks_what_each_device_holds_and_writes_the_whole():
    two = peak(2, parameters=[100, 100], inputs=[40, 20], gradients=[250, 120])
    figure = figures.held({"two devices": two, "many": peak(6, parameters=[7] * 6)})
    first, second = figure.axes
    for place in range(2):
        stack = [bar for bar in first.patches if round(bar.get_x() + bar.get_width() / 2) == place]
        assert heights(stack) == list(two.loc[place, list(KINDS)])
        assert round(stack[-1].get_y() + stack[-1].get_height()) == two.loc[place, "total"]
        assert [to_hex(bar.get_facecolor()) for bar in stack] == [to_hex(color) for color in KINDS.values()]
    assert [text.get_text() for text in first.texts] == ["390", "240"]
    assert [text.get_text() for text in second.texts] == ["7", "7"]  # of six bars the first and the last
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["gradients", "inputs", "parameters"]
    colors = [to_hex(handle.get_facecolor()) for handle in legend.get_patches()]
    assert colors == [to_hex(KINDS[kind]) for kind in ("gradients", "inputs", "parameters")]
    assert [label.get_text() for label in first.get_xticklabels()] == ["0", "1"]
    assert first.get_ylim() == second.get_ylim()


def test_carried_draws_lines_as_derived_and_dots_as_counted():
    lines = {"DP": {2: 2, 3: 4, 4: 6}, "ring": {2: 2, 3: 2.67, 4: 3}}
    figure = figures.carried(lines, {"DP": {2: 2.5, 4: 6.5}})
    (axes,) = figure.axes
    for line, (label, amounts) in zip(axes.lines, lines.items(), strict=True):
        assert (line.get_label(), dict(zip(line.get_xdata(), line.get_ydata(), strict=True))) == (label, amounts)
    (dots,) = axes.collections
    assert [tuple(dot) for dot in dots.get_offsets()] == [(2, 2.5), (4, 6.5)]
    assert to_hex(dots.get_facecolor()[0]) == to_hex(axes.lines[0].get_color()) != to_hex(axes.lines[1].get_color())
    texts = {text.get_text(): text.get_color() for text in axes.texts}
    assert {label: texts[label] for label in lines} == {line.get_label(): line.get_color() for line in axes.lines}
    assert "dots: counted; lines: derived" in texts
    assert axes.get_ylabel() == "weights and gradients\nin and out, in model sizes"


def test_the_dots_of_the_second_line_have_its_colour():
    (axes,) = figures.carried({"DP": {2: 2, 4: 6}, "ring": {2: 2, 4: 3}}, {"ring": {4: 3}}).axes
    (dots,) = axes.collections
    assert to_hex(dots.get_facecolor()[0]) == to_hex(axes.lines[1].get_color())


@pytest.mark.parametrize("number, text", [(812, "812"), (9600, "9.6k"), (1.2e6, "1.2M"), (3e9, "3G"), (2e12, "2T")])
def test_a_number_at_a_bar_is_short(number, text):
    assert _short(number) == text


def test_each_line_has_its_own_colour_and_its_dots():
    lines = {number: {2: number, 4: 2 * number} for number in range(6)}
    (axes,) = figures.carried(lines, lines).axes
    colors = [to_hex(line.get_color()) for line in axes.lines]
    assert len(set(colors)) == 6 and [to_hex(dots.get_facecolor()[0]) for dots in axes.collections] == colors


def test_a_title_need_not_be_a_text():
    assert [axes.get_title(loc="left") for axes in figures.held({2: peak(2), 4: peak(4)}).axes] == ["2", "4"]


@pytest.mark.parametrize("draw, text", [
    (lambda: figures.phases(LEDGER[:0]), "the ledger has no rows. Call the model first"),
    (lambda: figures.phases(LEDGER.assign(bytes_in=0, bytes_out=0)), "nothing has moved. Call the model first"),
    (lambda: figures.phases(None), "None is no table. Give model.ledger"),
    (lambda: figures.phases(peak(2)), "this DataFrame has no device, phase, bytes_in, bytes_out. Give model.ledger"),
    (lambda: figures.held(peak(2)), "this DataFrame is no dict. Give {title: peak}"),
    (lambda: figures.held([peak(2)]), "this list is no dict"),
    (lambda: figures.held({"a": None}), "None is no table. Give {title: model.peak}"),
    (lambda: figures.held({"a": LEDGER}), "has no parameters, buffers, inputs, outputs, gradients. Give"),
    (lambda: figures.held({"a": peak(0), "b": peak(2)}), "a peak has no rows"),
    (lambda: figures.carried({"DP": {2: "2"}}), "'2' is no finite number. Give {label: {devices: amount}}"),
    (lambda: figures.carried({"DP": [2, 3]}), "is no dict. Give {label: {devices: amount}}"),
    (lambda: figures.carried({"DP": {2: 2}}, {"DP": {2: None}}), "None is no finite number"),
    (lambda: figures.carried({"DP": {2: 2}}, {"pd": {2: 2}, 3: {2: 2}}), "there is no line 'pd', 3"),
    (lambda: figures.carried({name: {2: 1} for name in "abcdefg"}), "7 lines, and there are colours for 6"),
    (lambda: figures.held({}), "nothing to draw"),
    (lambda: figures.carried({}), "nothing to draw"),
    (lambda: figures.carried({"DP": {2: 2}}, {"pd": {2: 2}}), "there is no line 'pd'"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_said(draw, text):
    with pytest.raises(InputError, match=text):
        draw()
