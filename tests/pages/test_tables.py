import math

import pytest

import ffnmem as fm
from ffnmem.pages.prompts import prompt_chips, waterfall, with_tokens
from ffnmem.show.notebook import Axis, bar


@pytest.fixture(scope="module")
def capture(atlas: fm.Model) -> fm.prompts.Capture:
    return fm.capture(atlas, "The capital of France is")


@pytest.fixture(scope="module")
def attribution(capture: fm.prompts.Capture) -> fm.prompts.Attribution:
    return fm.attribute(capture)


def test_axis_always_holds_zero() -> None:
    assert Axis.over([2.0, 4.0]) == Axis(0.0, 4.0)
    assert Axis.over([-2.0, -4.0]) == Axis(-4.0, 0.0)
    assert Axis.over([-1.0, 3.0]).at(0.0) == 250
    assert Axis.over([0.0]).at(0.0) == 0  # nothing to draw, and no division by zero
    assert Axis.over([math.nan, 1.0]).at(math.nan) == 0


def test_bars_show_even_when_they_are_tiny_and_stay_inside() -> None:
    axis = Axis(-1.0, 1.0)
    for logit, before in [(1e-9, 0.0), (1e-9, 1.0), (-2.0, 1.0), (1.0, 0.0)]:
        found = bar(axis, logit, before)
        assert found.width >= 3
        assert found.x >= 0
        assert found.x + found.width <= 1000
        assert found.adds == (logit > 0)


def test_memories_are_the_top_rows_and_their_tokens_are_projects(
    atlas: fm.Model, attribution: fm.prompts.Attribution
) -> None:
    rows = with_tokens(atlas, attribution.top(7), 3, {attribution.target_ids[0]}).itertuples()
    for row, expected in zip(rows, attribution.top(7).itertuples(), strict=True):
        assert (row.layer, row.neuron, row.logit, row.share) == (
            expected.layer,
            expected.neuron,
            expected.logit,
            expected.share,
        )
        tokens = fm.project(atlas, row.layer, row.neuron, k=3, side="value")
        for sign, chips in (("promoted", row.promoted), ("suppressed", row.suppressed)):
            assert [chip.token for chip in chips] == tokens[tokens["sign"] == sign]["token"].tolist()
            assert {chip.kind for chip in chips} == {sign}
            assert all(chip.named == (chip.token == attribution.target) for chip in chips)


def test_ledger_steps_join_and_end_at_the_logit(attribution: fm.prompts.Attribution) -> None:
    found = waterfall(attribution)
    assert [row.logit for row in found.rows] == attribution.components["logit"].tolist()
    for above, below in zip(found.rows, found.rows[1:], strict=False):
        assert below.bar.start == pytest.approx(above.bar.end, abs=0.02)
    assert found.rows[-1].total == pytest.approx(found.sum)
    assert abs(found.sum - found.logit) == pytest.approx(found.error)
    assert found.rows[0].layer is None


def test_predictions_add_what_has_a_role_at_its_own_rank(capture: fm.prompts.Capture) -> None:
    everything = capture.predictions(k=capture.model.d_vocab)
    far = everything.iloc[1000]
    rows = capture.ranked(-1, {int(everything["token_id"][2]): "target", int(far["token_id"]): "foil"}, k=5)
    assert [row.rank for row in rows] == [1, 2, 3, 4, 5, 1001]
    assert [row.role for row in rows] == ["", "", "target", "", "", "foil"]
    assert rows[-1].probability == pytest.approx(far["probability"])
    assert [row.logit for row in rows[:5]] == pytest.approx(everything["logit"][:5].tolist())


def test_prompt_chips_name_the_beginning_and_special_tokens(atlas: fm.Model, capture: fm.prompts.Capture) -> None:
    chips = prompt_chips(capture)
    assert [chip.token for chip in chips] == capture.token_strings()  # as everywhere: BOS is no second name of a token
    assert (chips[0].kind, chips[0].title) == ("special", "beginning of sequence; position 0, token 0")
    assert {chip.kind for chip in chips[1:]} == {""}
    assert len(prompt_chips(capture, limit=2)) == 2
    assert atlas.bos_token_id is not None
    inside = fm.capture(atlas, [5, atlas.bos_token_id])
    assert [chip.kind for chip in prompt_chips(inside)] == ["", "special"]
