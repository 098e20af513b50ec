"""Public names have one path each, load on first use, and old names point to the new ones."""

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import isotherm

VERSION_0_1 = """
    BayesianLinearRegression BayesianLogisticRegression BayesianMLPClassifier BayesianMLPRegressor
    CheckpointWarning Dense Diagonal DivergedError HealthWarning Identity Kronecker
    LostProcessError Network PolicyWarning RollbackWarning Run Sampler StepInfo ThermostatDPFA
    ThermostatLDA WarmStart __version__ as_optax average chain compiler_options
    configurational_temperature control_variates cyclical diagonal draws eigenbasis ess find_mode
    from_equinox from_linen from_numpyro from_nnx full_batch generated_batches gradient_noise
    halving independent_batches kinetic_temperature kronecker_eigenbasis ksd langevin lenet
    load_run minibatch_gradient mlp moments msgnht no_batches noise_ratio parse polynomial
    predictions predictive psgld rhat sample save_run sghmc sgld sgnht sgrld sharded_batches
    shuffled_batches symmetric_batches warm_start
""".split()
"""`isotherm.__all__` before the names were grouped (commit f077596)."""
NAMESPACES = ("collect", "coordinates", "diagnostics", "exceptions", "loop", "models", "schedules")


def test_the_root_has_at_most_45_public_names():
    names = set(isotherm.__all__) - {"__version__"}
    assert len(names) <= 45
    assert len(isotherm.__all__) == len(set(isotherm.__all__))
    assert not [name for name in names if name.startswith("_")]


@pytest.mark.parametrize("name", isotherm.__all__)
def test_every_public_name_resolves_and_is_listed(name):
    assert getattr(isotherm, name) is not None
    assert name == "__version__" or name in dir(isotherm)


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_namespaces_are_public_and_their_names_resolve(namespace):
    module = getattr(isotherm, namespace)
    assert namespace in isotherm.__all__
    for name in getattr(module, "__all__", []):
        assert getattr(module, name) is not None


@pytest.mark.parametrize("name", VERSION_0_1)
def test_a_name_of_version_0_1_still_exists_or_the_error_names_the_new_one(name):
    if name in isotherm.__all__:
        assert name not in isotherm._MOVED
        return
    new = isotherm._MOVED[name]
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': it is now {new}$"):
        getattr(isotherm, name)
    assert pkgutil.resolve_name(new) is not None


def test_the_table_of_moved_names_has_no_others():
    assert set(isotherm._MOVED) <= set(VERSION_0_1)


def test_the_changelog_lists_every_moved_name():
    text = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(isotherm[\w.]+)` \|$", text, re.MULTILINE)
    assert dict(rows) == isotherm._MOVED
    assert len(rows) == len(isotherm._MOVED)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'isotherm' has no attribute 'sglf'$"):
        isotherm.sglf  # noqa: B018


def test_importing_isotherm_does_not_import_jax():
    program = (
        "import sys, isotherm; dir(isotherm); isotherm.__version__; isotherm.exceptions; "
        "sys.exit(bool({'jax', 'numpy', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
