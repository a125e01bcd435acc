import pytest

from ffnmem.pages.prompts import BAND, PAPER, WIDE_UP_TO, heatmap


def values(layers: int, positions: int) -> list[list[float]]:
    return [[(-1) ** pos * (layer + 1.0) * (pos + 1) for pos in range(positions)] for layer in range(layers)]


@pytest.mark.parametrize("positions", [1, 2, WIDE_UP_TO, WIDE_UP_TO + 1, 128])
def test_every_layer_and_position_has_its_cell(positions: int) -> None:
    tokens = [f"t{pos}" for pos in range(positions)]
    found = heatmap(values(3, positions), tokens, positions - 1)
    columns = [column for band in found.bands for column in band]
    assert [column.position for column in columns] == list(range(positions))
    assert [column.read for column in columns] == [False] * (positions - 1) + [True]
    assert all(len(column.cells) == 3 for column in columns)
    for band in found.bands:
        assert [column.x for column in band] == [index * found.column for index in range(len(band))]


def test_cells_carry_value_sign_and_strength() -> None:
    found = heatmap([[0.5, -2.0], [0.0, 1.0]], [" a", "b"], 1)
    first, second = found.bands[0]
    assert found.limit == 2.0
    assert [(cell.strength, cell.adds, cell.text) for cell in first.cells] == [
        (0.25, True, "+0.50"),
        (0.0, True, "0.00"),
    ]
    assert [(cell.strength, cell.adds, cell.text) for cell in second.cells] == [
        (1.0, False, "−2.00"),
        (0.5, True, "+1.00"),
    ]
    assert first.cells[0].y > first.cells[1].y  # layer 0 stands at the bottom
    assert first.cells[0].title == "layer 0, position 0 ' a': +0.500"
    assert first.label == "·a"


def test_a_map_of_zeros_has_no_colour() -> None:
    found = heatmap([[0.0]], ["a"], 0)
    assert found.bands[0][0].cells[0].strength == 0


def test_long_prompts_come_in_bands_that_fit_paper() -> None:
    found = heatmap(values(6, 128), ["token"] * 128, 127)
    assert not found.wide
    assert [len(band) for band in found.bands] == [BAND] * (128 // BAND) + [128 % BAND]
    assert found.column * BAND <= PAPER
    # Without room for numbers the sign still shows by more than its colour, where there is much to show.
    assert {cell.text for band in found.bands for column in band for cell in column.cells} == {"+", "−", ""}


def test_deep_models_get_low_rows() -> None:
    assert heatmap(values(48, 10), ["t"] * 10, 9).height < 800
