"""Releases: pins with hashes, licences, and the commands of RELEASING.md that need no network."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
PINS = re.compile(
    r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)((?:.*\\\n\s+--hash=sha256:[0-9a-f]{64})*)", re.M
)


def release(program):
    """Import a program of the folder `release`."""
    spec = importlib.util.spec_from_file_location(program, ROOT / "release" / f"{program}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pin_has_hashes_and_every_dependency_is_pinned():
    found = PINS.findall(LOCK)
    lines = [line for line in LOCK.splitlines() if re.match("[A-Za-z]", line)]
    assert len(found) == len(lines) > 100
    assert all(hashes.count("--hash") >= 1 for _, _, hashes in found)
    pinned = {re.sub(r"[-_.]+", "-", name).lower() for name, *_ in found}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(t for n in extras if n != "bench" for t in extras[n])]
    needed = {Requirement(text).name.lower() for text in texts} - {"isotherm"}
    assert needed <= pinned
    assert "--require-hashes -r requirements.lock" in (ROOT / "Makefile").read_text()


def test_hashes_are_added_to_all_pins_and_replaced(monkeypatch):
    lock = release("lock")
    monkeypatch.setattr(lock, "hashes", lambda name, version: ["a" * 64, "b" * 64])
    text = "# comment\nabsl-py[x,y]==2.5.1\njax==0.10.2 ; python_full_version < '3.12'\n"
    once = lock.locked(text)
    assert once.count("--hash=sha256:") == 4 and lock.locked(once) == once
    assert "jax==0.10.2 ; python_full_version < '3.12' \\\n    --hash=sha256:aaaa" in once
    assert lock.version_of("annotated_doc-0.0.6-py3-none-any.whl", "annotated-doc") == "0.0.6"
    assert lock.version_of("scikit_learn-1.7.tar.gz", "scikit-learn") == "1.7"
    assert lock.version_of("scikit_learn_extra-0.3.tar.gz", "scikit-learn") is None


def test_the_bill_of_materials_has_all_packages_with_licences():
    command = [sys.executable, ROOT / "release" / "sbom.py"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    names = {entry["name"]: entry for entry in found["components"]}
    assert (
        found["bomFormat"] == "CycloneDX" and found["metadata"]["component"]["name"] == "isotherm"
    )
    assert {"jax", "jaxlib", "numpy", "scipy", "numba", "llvmlite", "pooch"} <= set(names)
    assert not {"sympy", "flax", "pytest"} & set(names)  # of extras
    assert all(entry["licenses"] and entry["purl"] for entry in names.values())
    done = subprocess.run([*command, "--licences"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and re.search(r"^jax +\S+ +Apache", done.stdout, re.M)


def commands():
    """Return the commands of RELEASING.md."""
    text = (ROOT / "RELEASING.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_the_commands_of_the_release_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    made = [c.split()[1] for c in commands() if c.startswith("make ")]
    assert {"test-all", "lint", "docs", "audit", "licences", "release"} <= set(made) <= targets
    assert all(c.startswith(("make ", "git ")) for c in commands())


def test_the_tag_is_made_and_pushed(tmp_path):
    """The commands of git, in a repository of its own that pushes to a folder."""
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {
        f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    there = tmp_path / "there.git"
    prepare = [
        f"git init --quiet --bare {there}",
        f"git init --quiet {tmp_path / 'here'}",
        f"git -C {tmp_path / 'here'} commit --quiet --allow-empty --message first",
        f"git -C {tmp_path / 'here'} remote add origin {there}",
    ]
    released = [c.replace("X.Y.Z", "1.2.3") for c in commands() if c.startswith("git ")]
    for command in [*prepare, *released]:
        where = tmp_path / "here" if command in released else tmp_path
        subprocess.run(shlex.split(command), cwd=where, env=env, check=True, capture_output=True)
    show = ["git", "-C", there, "tag", "--list", "--format", "%(objecttype) %(refname:short)"]
    done = subprocess.run(show, env=env, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "tag v1.2.3"


CLEAN = {"name": "jax", "version": "0.10.2", "vulns": []}
SKIPPED = {"name": "numpy", "skip_reason": "Dependency not found on PyPI: numpy (2.4.6)"}
FLAW = {"name": "x", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}


@pytest.mark.parametrize(
    ("report", "code", "message"),
    [
        ([CLEAN, CLEAN], 0, "All 2 packages were checked; none has a known vulnerability."),
        ([CLEAN, FLAW], 1, "x 1: PYSEC-1, fixed in 2"),
        ([SKIPPED, SKIPPED], 2, "Nothing was checked: 0 of 2 packages were looked up"),
        ([CLEAN, SKIPPED], 2, "1 of 2 packages were looked up"),
        ([FLAW, SKIPPED], 1, "This is no all-clear."),
        ([], 2, "Nothing was checked"),
        (None, 2, "Nothing was checked: pip-audit made no report (ConnectionError: no route)."),
    ],
)
def test_an_audit_that_checked_nothing_is_no_all_clear(tmp_path, report, code, message):
    """pip-audit itself exits with 0 if its database does not answer."""
    text = "" if report is None else json.dumps({"dependencies": report, "fixes": []})
    program = tmp_path / "pip-audit"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nprint({text!r})\n"
        "print('Traceback\\nConnectionError: no route', file=sys.stderr)\n"
    )
    program.chmod(0o755)
    command = [sys.executable, ROOT / "release" / "audit.py", "--pip-audit", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code and message in done.stdout and not done.stderr


def test_an_audit_without_its_program_says_so(tmp_path):
    command = [sys.executable, ROOT / "release" / "audit.py", "--pip-audit", tmp_path / "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Nothing was checked" in done.stdout and not done.stderr


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(tmp_path):
    """What `make release` does, without a network."""
    pytest.importorskip("hatchling", reason="`make setup` installs it")
    command = [sys.executable, ROOT / "release" / "try_wheel.py", "--offline", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "are good." in done.stdout and "rhat" in done.stdout and "✓" in done.stdout
