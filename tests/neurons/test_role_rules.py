"""The rules, on statistics made up so that the answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from ffnmem.core.errors import InputError
from ffnmem.core.types import ROLE_NAMES, TEXT_ROLES
from ffnmem.neurons.role_assignment import NONE, ROLES, Thresholds, assign

from ..helpers import refuses

PLAIN: dict[str, Any] = {
    "layer": 1,
    "value_norm": 1.0,
    "cosine_mean": 0.0,
    "cosine_variance": 0.001,
    "cosine_skew": 0.1,
    "cosine_kurtosis": 3.0,
    "null_share": 0.1,
    "io_cosine": 0.0,
}
TEXT: dict[str, Any] = {
    "frequency_cosine": 0.0,
    "firing_rate": 0.1,
    "dead": False,
    "write_norm": 1.0,
    "position_information": 0.0,
    "position_p": 1.0,
    "firings": 5,
    "detects": False,
    "trigger_share": 0.0,
}
ENTROPY = {"null_share": 0.9, "value_norm": 2.0, "cosine_variance": 0.0002}
CASES: dict[str, dict[str, Any]] = {
    "dead": {"dead": True, "firing_rate": 0.0, "write_norm": 0.1},
    "position": {"position_information": 0.06},
    "entropy": ENTROPY,
    "token-frequency": {"frequency_cosine": -0.8},
    "prediction": {"cosine_kurtosis": 11.0, "cosine_skew": 2.0},
    "suppression": {"cosine_kurtosis": 11.0, "cosine_skew": -2.0},
    "partition": {"cosine_variance": 0.006},
    "token-detector": {"detects": True, "trigger_share": 0.97},
    "strengthening": {"io_cosine": 0.51},
    "weakening": {"io_cosine": -0.51},
}
MISSES: list[dict[str, Any]] = [
    {"dead": True, "firing_rate": 0.0, "write_norm": 0.11},  # its gate is shut, and it writes all the same
    {"position_information": 0.05},
    {**ENTROPY, "layer": 0},
    {**ENTROPY, "null_share": 0.4},
    {**ENTROPY, "value_norm": 1.1},
    {**ENTROPY, "cosine_variance": 0.0009},
    {"frequency_cosine": 0.6},  # below what random directions have
    {"cosine_kurtosis": 10.0, "cosine_skew": 2.0},
    {"cosine_variance": 0.005},
    {"io_cosine": 0.5},
    {"value_norm": np.nan, "cosine_kurtosis": np.nan, "cosine_skew": np.nan, "io_cosine": np.nan},
]


def table(*changes: dict[str, Any], text: bool = True) -> pd.DataFrame:
    """Two layers of ten plain neurons each, and one neuron in layer 1 (or the layer named) for every change."""
    plain = {**PLAIN, **(TEXT if text else {})}
    rows = [{**plain, "layer": layer} for layer in (0, 1) for _ in range(10)]
    kept = [{key: value for key, value in change.items() if key in plain} for change in changes]
    frame = pd.DataFrame([*rows, *({**plain, **change} for change in kept)])
    frame.insert(1, "neuron", np.arange(len(frame)))
    frame.attrs["frequency_null"] = 0.7
    return frame


def thresholds(**changes: Any) -> Thresholds:
    return Thresholds(**changes).resolved(1024)


@pytest.mark.parametrize("name", CASES)
def test_each_rule(name: str) -> None:
    """The neuron gets its role, only that, with the statistic that decided; plain ones get none."""
    found = assign(table(CASES[name]), thresholds(), 2)
    last = found.iloc[-1]
    role = next(role for role in ROLES if role.name == name)
    assert (last["role"], last["statistic"]) == (name, role.statistic)
    assert last["value"] == CASES[name][role.statistic]
    assert [r.name for r in ROLES if last[r.column]] == [name]
    assert (found["role"][:-1] == NONE).all()
    assert found["value"][:-1].isna().all()
    assert (found["statistic"][:-1] == "").all()


@pytest.mark.parametrize("miss", MISSES, ids=str)
def test_just_missed(miss: dict[str, Any]) -> None:
    assert assign(table(miss), thresholds(), 2).iloc[-1]["role"] == NONE


GATED = {"gate_key_cosine": 0.2, "key_norm": 1.0, "coefficient_sign": 1.0}


@pytest.mark.parametrize("text", [True, False])
def test_a_gated_neurons_length_and_sign_are_those_of_what_it_writes(text: bool) -> None:
    """From text, or where there is none from its key: the value alone can be written in any length, and either way."""
    length = "write_norm" if text else "key_norm"
    turned = "coefficient_sign" if text else "gate_key_cosine"
    peaked = {"cosine_kurtosis": 11.0, "cosine_skew": 2.0}
    cases = [
        ({**ENTROPY, "value_norm": 1.0, length: 1.3}, "entropy"),
        ({**ENTROPY, "value_norm": 1.3, length: 0.9}, NONE),
        ({**peaked, turned: 0.3}, "prediction"),
        ({**peaked, turned: -0.3}, "suppression"),
        ({**peaked, "cosine_skew": -2.0, turned: -0.3}, "prediction"),
        ({**peaked, turned: 0.0}, NONE),
        ({**peaked, turned: np.nan}, NONE),
    ]
    plain = {**PLAIN, **(TEXT if text else {}), **{k: v for k, v in GATED.items() if text or k != "coefficient_sign"}}
    rows = [plain] * 20 + [{**plain, **case} for case, _ in cases]
    frame = pd.DataFrame(rows).assign(neuron=np.arange(20 + len(cases)))
    assert assign(frame, thresholds(), 2)["role"].tolist() == [NONE] * 20 + [role for _, role in cases]


def test_a_frequency_is_measured_by_what_can_be_reached() -> None:
    """Few directions for many tokens, or a small corpus: no value can have a large cosine."""
    frame = table({"frequency_cosine": 0.31}, {"frequency_cosine": -0.29})
    frame.attrs |= {"frequency_null": 0.2, "frequency_reach": 0.6}
    assert assign(frame, thresholds(), 2)["is_token_frequency"].tolist()[-2:] == [True, False]


def test_precedence_keeps_every_flag() -> None:
    """The first role in the order wins; the others stay as flags."""
    for index, role in enumerate(ROLES):
        if role.name in ("entropy", "suppression", "partition", "weakening"):
            continue  # exclude each other with one of the rest
        rest = [r.name for r in ROLES[index:] if r.name not in ("entropy", "suppression", "weakening")]
        mixed = {key: value for name in reversed(rest) for key, value in CASES[name].items()}
        last = assign(table(mixed), thresholds(), 2).iloc[-1]
        assert last["role"] == role.name
        assert [r.name for r in ROLES if last[r.column]] == rest


def test_without_text() -> None:
    """Roles that need text are absent, not false."""
    found = assign(table(CASES["partition"], text=False), thresholds(), 2)
    assert {role.column for role in ROLES if role.column in found} == {
        role.column for role in ROLES if not role.needs_store
    }
    assert found.iloc[-1]["role"] == "partition"


def test_thresholds_move_the_rules() -> None:
    moved = thresholds(kurtosis=12.0, partition=0.01, io=0.6, position=0.1, frequency=0.9, null_share=0.95)
    changed = ("prediction", "suppression", "partition", "strengthening", "weakening", "position")
    for name in (*changed, "token-frequency", "entropy"):
        assert (assign(table(CASES[name]), moved, 2)["role"] == NONE).all()
    assert assign(table({**ENTROPY, "layer": 0}), thresholds(late=2), 2)["is_entropy"].iloc[-1]


def test_chance_is_no_role() -> None:
    """Thresholds are raised to what random directions have, never lowered to it."""
    for name, null in (("partition", "partition_null"), ("token-frequency", "frequency_null")):
        frame = table(CASES[name])
        role = next(role for role in ROLES if role.name == name)
        frame.attrs[null] = 1.01 * abs(CASES[name][role.statistic])
        assert assign(frame, thresholds(), 2).iloc[-1]["role"] == NONE
        frame.attrs[null] = 0.0
        assert assign(frame, thresholds(), 2).iloc[-1]["role"] == name


def test_names_are_those_that_the_command_line_knows() -> None:
    assert tuple(role.name for role in ROLES) == ROLE_NAMES
    assert {role.name for role in ROLES if role.needs_store} == set(TEXT_ROLES)


def test_resolved() -> None:
    """The published number at the published width; what was given stays."""
    assert Thresholds().resolved(768).null_dimension == 12
    assert Thresholds(partition=0.004, null_dimension=7).resolved(768) == Thresholds(partition=0.004, null_dimension=7)


NAN = ("kurtosis", "partition", "norm", "io", "position", "frequency", "coverage", "silent")


@pytest.mark.parametrize(
    ("name", "value"),
    [("late", 0), ("types", 0), ("coverage", 0.0), ("coverage", 1.5), *((name, float("nan")) for name in NAN)],
)
def test_senseless_thresholds(name: str, value: float) -> None:
    """Nothing is above NaN: a role would silently have no neurons."""
    with refuses(InputError, ValueError, name, str(value)):
        Thresholds(**{name: value})  # type: ignore[arg-type]
