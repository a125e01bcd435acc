"""How well :func:`ffnmem.roles` recovers planted roles: precision and recall, role by role."""

from __future__ import annotations

import pandas as pd

from ..errors import InputError, quoted
from ..planted import Planted
from ..semantics.role_rules import ROLES, Role

PLANTED_AS = {"token-frequency": "frequency", "token-detector": "detector"}  # where the truth's name is another
ALONGSIDE = ("strengthening", "weakening")  # which a neuron is besides its role, in the truth's column io
COLUMNS = ("role", "precision", "recall", "planted", "found", "hits")


def role_scores(planted: Planted, table: pd.DataFrame) -> pd.DataFrame:
    """Precision and recall of each role on a model whose neurons' roles are known.

    A neuron counts as found for every role that applies to it (the columns ``is_…``), not only for its primary one.

    Args:
        planted: of ``plant("roles")``.
        table: of :func:`ffnmem.roles` for its model; of all neurons, or of some layers. Roles that it does not tell
            about, for want of a store, are left out.

    Returns:
        One row a role, in the order of ``ROLES``: role, precision (hits / found), recall (hits / planted), and the
        numbers of neurons planted, found, and hits (both). NaN where nothing was found, or planted.

    Raises: InputError for planted meanings or facts, or another model's table.
    """
    if planted.kind != "roles":
        raise InputError(f"planted must be of kind 'roles', not {quoted(planted.kind)}")
    theirs = table.attrs.get("provenance", {}).get("fingerprint", planted.model.fingerprint)
    if theirs != planted.model.fingerprint:
        raise InputError(f"the table is of model {theirs}, not of the planted {planted.model.fingerprint}")
    flags = [role for role in ROLES if role.column in table]
    both = planted.truth.rename(columns={"role": "planted_role"}).merge(
        table[["layer", "neuron", *(role.column for role in flags)]], on=["layer", "neuron"], validate="one_to_one"
    )
    if len(both) != len(table):
        raise InputError(f"the table has {len(table)} neurons, of which only {len(both)} are in the truth")
    return pd.DataFrame([score(both, role) for role in flags], columns=list(COLUMNS))


def score(both: pd.DataFrame, role: Role) -> dict[str, str | float | int]:
    """One row: the truth's neurons of a role against those found."""
    name = PLANTED_AS.get(role.name, role.name)
    true = both["io" if role.name in ALONGSIDE else "planted_role"] == name
    found = both[role.column].astype(bool)
    hits, n_true, n_found = int((true & found).sum()), int(true.sum()), int(found.sum())
    return {
        "role": role.name,
        "precision": hits / n_found if n_found else float("nan"),
        "recall": hits / n_true if n_true else float("nan"),
        "planted": n_true,
        "found": n_found,
        "hits": hits,
    }
