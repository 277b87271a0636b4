"""efficiency(): dots are what was measured, and what nothing has tested is broken, and called a projection."""

import pytest
from matplotlib.colors import to_hex

from ddp_lab import figures
from ddp_lab.errors import InputError

MEASURED = {"strong": {1: 1.0, 2: 0.8, 4: 0.4}, "weak": {2: 0.9, 4: 0.45}}
MODEL = {
    "strong": {1: 1.0, 2: 0.7, 4: 0.5},
    "weak": {1: 1.0, 2: 0.95, 4: 0.48, 8: 0.3, 64: 0.2},
    "a fast link": {8: 0.9, 64: 0.85},
}


def drawn(figure):
    """{label: [(ranks, efficiencies, marker, "-" or "--", colour)]} of all lines but the ideal."""
    (axes,) = figure.axes
    found = {}
    for line in axes.lines:
        label = line.get_label().removeprefix("_")
        if not label.startswith("ideal"):
            look = line.get_marker(), line.get_linestyle(), to_hex(line.get_color())
            name = label.removesuffix(": projection")
            found.setdefault(name, []).append((list(line.get_xdata()), list(line.get_ydata()), *look))
    return found


def ends(figure):
    """{text at a line's end: its colour}."""
    return {text.get_text(): to_hex(text.get_color()) for text in figure.axes[0].texts}


def test_each_dot_is_a_measurement_and_each_line_the_model():
    found = drawn(figures.efficiency(MEASURED, MODEL))
    for label, line in MEASURED.items():
        dots = found[label][0]
        assert dots[2] not in ("None", None) and dots[3] == "None"
        assert dict(zip(*dots[:2], strict=True)) == line
    for label, line in MODEL.items():
        lines = [(x, y) for x, y, _, style, _ in found[label] if style != "None" and x]
        assert {n: e for x, y in lines for n, e in zip(x, y, strict=True)} == line
    assert all(len({color for *_, color in own}) == 1 for own in found.values())  # a label, a colour
    assert len({own[0][-1] for own in found.values()}) == 3


def test_what_lies_beyond_the_measured_is_broken_and_called_a_projection():
    figure = figures.efficiency(MEASURED, MODEL)
    spans = {(label, style): x for label, own in drawn(figure).items() for x, _, _, style, _ in own if x}
    assert spans["weak", "-"] == [1, 2, 4] and spans["weak", "--"] == [4, 8, 64]
    assert ("strong", "--") not in spans and ("a fast link", "-") not in spans
    assert spans["a fast link", "--"] == [8, 64]
    assert set(ends(figure)) == {"strong", "weak: projection", "a fast link: projection", "ideal"}


def test_without_a_model_the_label_stands_at_the_last_dot():
    figure = figures.efficiency(MEASURED)
    assert set(ends(figure)) == {"strong", "weak", "ideal"}
    colors = {label: own[0][-1] for label, own in drawn(figure).items()}
    assert colors == {label: color for label, color in ends(figure).items() if label != "ideal"}


def test_a_line_that_ends_early_has_its_label_at_its_own_end_inside_the_picture():
    figure = figures.efficiency({"hosts": {2: 0.1, 4: 0.05}}, {"weak": {1: 1.0, 64: 0.8}})
    (axes,) = figure.axes
    (text,) = [text for text in axes.texts if text.get_text() == "hosts"]
    assert text.xy == (4, 0.05)
    figure.canvas.draw()
    assert text.get_window_extent().y0 >= axes.get_window_extent().y0
    assert axes.texts[0].get_text() == "hosts" and {"ideal", "weak: projection"} < set(ends(figure))


def ideal(figure):
    (line,) = [line for line in figure.axes[0].lines if line.get_label().startswith("ideal")]
    return line.get_label(), dict(zip(line.get_xdata(), line.get_ydata(), strict=True))


def test_the_ideal_falls_where_ranks_share_cores():
    label, line = ideal(figures.efficiency(MEASURED, cores=2))
    assert label == "ideal, 2 cores" and (line[1], line[2]) == (1, 1)
    assert all(height == pytest.approx(min(1, 2 / ranks)) for ranks, height in line.items())
    assert max(line) == pytest.approx(4)
    for cores in (None, 4, 8):
        assert ideal(figures.efficiency(MEASURED, cores=cores)) == ("ideal", {1: 1, 4: 1})
    assert ideal(figures.efficiency(MEASURED, cores=1))[0] == "ideal, 1 core"


def test_all_ranks_measured_are_named_and_all_that_is_drawn_fits():
    figure = figures.efficiency({"weak": {1: 1.0, 3: 1.4}}, {"weak": {3: 1.0, 16: 0.5}})
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "3", "4", "8", "16"]
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 1.4
    assert axes.get_xlim()[0] < 1 and axes.get_xlim()[1] > 16
    assert axes.get_xlabel() == "ranks" and axes.get_ylabel() == "efficiency"
    figures.efficiency({"weak": {1: 1.0}})._repr_png_()  # one rank alone


@pytest.mark.parametrize("measured", [
    *(None, {}, {"a": {}}, {"a": 1}, {"a": {0: 1}}, {"a": {1.5: 1}}, {"a": {1: 0}}, {"a": {1: "1"}}, {"a": {"2": 1}}),
    *({"a": {1: float("nan")}}, {str(n): {1: 1.0} for n in range(6)}),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused(measured):
    with pytest.raises(InputError, match="^efficiency"):
        figures.efficiency(measured)


@pytest.mark.parametrize("cores", [-1, 1.5, "2"])
def test_cores_are_counted(cores):
    with pytest.raises(InputError, match="cores"):
        figures.efficiency(MEASURED, cores=cores)
