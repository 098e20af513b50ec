"""Documents as an attacker changes them: every value replaced by others, checksums made anew.

`SCENARIOS` has every kind of document that isotherm reads. A scenario makes a file in a folder, and
returns its document, a function that replaces it, and a function that reads and uses it.
`tests/io/test_forgeries.py` tries some of the forgeries, `soak/forge.py` all of them.
"""

import copy
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import isotherm
from fault_scenarios import (
    load_run_state,
    load_units,
    result,
    run_state,
    saved_run,
    write_shards,
    write_units,
)
from isotherm.data.shard_manifest import ShardManifest
from isotherm.loop.checkpoint import Checkpoints
from isotherm.paper.report import document as results
from isotherm.paper.report.page import build
from isotherm.topics.estimators.dpfa import BayesianDPFA
from isotherm.topics.estimators.lda import BayesianLDA

Case = tuple[Any, Callable[[Any], Any], Callable[[], Any]]

VALUES = (
    None,
    True,
    -1,
    0,
    10**12,
    10**30,
    1e308,
    float("nan"),
    "",
    "../x",
    "S1000000000000",
    "\x1b[31m",
    [],
    [[]],
    [10**12] * 3,
    {},
    {"dict": 1},
    {"scalar": ["S1000000000000", "x"]},
    {"deque": [], "maxlen": -1},
)
MOST_BYTES = 10**8
"""Memory that reading a small forged file may take."""


def forgeries(document: Any, stride: int = 1) -> Iterator[tuple[str, Any]]:
    """Yield a label and a copy of a document in which one value is removed or replaced."""
    number = 0
    for place in _places(document):
        for value in (*VALUES, "removed"):
            number += 1
            if number % stride:
                continue
            changed = copy.deepcopy(document)
            node = changed
            for key in place[:-1]:
                node = node[key]
            if value == "removed":
                del node[place[-1]]
            else:
                node[place[-1]] = copy.deepcopy(value)
            yield f"{'.'.join(map(str, place))} = {value!r}", changed


def _places(tree: Any, above: tuple = ()) -> Iterator[tuple]:
    """Yield the paths of all values; of long lists only the first three entries."""
    items = tree.items() if isinstance(tree, dict) else ()
    for key, value in enumerate(tree[:3]) if isinstance(tree, list) else items:
        yield (*above, key)
        yield from _places(value, (*above, key))


def judge(
    document: Any, write: Callable[[Any], Any], load: Callable[[], Any], stride: int = 1
) -> Counter:
    """Read every forgery; return how many were read and how many refused.

    It must be read, or refused with a `ValueError` whose message can be printed, without much
    memory: `numpy` reports to `tracemalloc` what it asks for, whether or not it gets it.
    """
    counts = Counter()
    for label, changed in forgeries(document, stride):
        write(changed)
        tracemalloc.start()
        try:
            load()
            counts["read"] += 1
        except ValueError as error:
            counts["refused"] += 1
            assert str(error).isprintable() and len(str(error)) < 3000, label
        except Exception as error:
            raise AssertionError(f"{label}: {error!r}") from error
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < MOST_BYTES, f"{label}: {peak:,} bytes"
    write(document)
    load()
    return counts


def sealed_header(path: Path) -> tuple[Any, Callable[[Any], None]]:
    """Return the header of a safetensors file, and a function that replaces it, with its seal."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}

    def write(changed: Any) -> None:
        body = json.dumps(changed)
        seal = sha256(body.encode()).hexdigest()
        save_file(tensors, path, metadata={**metadata, "isotherm": f"{seal}\n{body}"})

    return json.loads(metadata["isotherm"].partition("\n")[2]), write


def as_json(path: Path) -> tuple[Any, Callable[[Any], Any]]:
    """Return a JSON document, and a function that replaces it."""
    return json.loads(path.read_text()), lambda changed: path.write_text(json.dumps(changed))


def run_header(folder: Path) -> Case:
    """Return the header of a saved run."""
    path = folder / "run.safetensors"
    isotherm.save_run(saved_run(1), path)
    document, write = sealed_header(path)
    document["run"]["rollbacks"] = [[1, 0, "w", 0.2, 0.1]]

    def load() -> Any:
        run = isotherm.load_run(path)
        return repr(run), run.ok, str(run.summary()), run.num_chains

    return document, write, load


def checkpoint_state(folder: Path) -> Case:
    """Return the document of a checkpoint."""
    Checkpoints(folder / "run", {"seed": 1}).save(run_state(0))
    document, plain = as_json(folder / "run" / "state-00000.json")
    document |= {"rollbacks": [[1, 0, "w", 0.2, 0.1]], "steps into draw": 0}
    del document["sha256"]

    def write(changed: Any) -> None:
        seal = sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()
        plain({**changed, "sha256": seal})

    def load() -> Any:
        found = load_run_state(Checkpoints(folder / "run", {"seed": 1}))
        return found.num_kept + found.steps_into_draw, [back.step + 1 for back in found.rollbacks]

    return document, write, load


def checkpoint_identity(folder: Path) -> Case:
    """Return the identity of the run in a folder of checkpoints."""
    identity = {"seed": 1, "leaves": {"x": "float32[3]"}}
    Checkpoints(folder / "run", identity).save(run_state(0))
    document, write = as_json(folder / "run" / "run.json")
    return document, write, lambda: load_run_state(Checkpoints(folder / "run", identity))


def shard_manifest(folder: Path) -> Case:
    """Return the manifest of shards."""
    write_shards(folder, 0)
    document, write = as_json(folder / "out" / "ledger.json")

    def load() -> Any:
        manifest = ShardManifest.open(folder / "out", {"seed": 1})
        return manifest.paths, manifest.tally, manifest.position + 1

    return document, write, load


def owner_of_units(folder: Path) -> Case:
    """Return the owner of the finished units of an experiment."""
    write_units(folder, 0)
    document, write = as_json(folder / "units" / "belongs-to.json")
    return document, write, lambda: load_units(folder)


def zarr_metadata(name: str) -> Callable[[Path], Case]:
    """Return the scenario of the metadata of an array in a Zarr folder."""

    def scenario(folder: Path) -> Case:
        isotherm.save_run(saved_run(1), folder / "run.zarr")
        document, write = as_json(folder / "run.zarr" / name / "zarr.json")
        return document, write, lambda: isotherm.load_run(folder / "run.zarr")

    return scenario


def report_page(folder: Path) -> Case:
    """Return the result of an experiment, on a page beside a good one."""
    good = result(0) | {"config": {"h": 0.1, "words": ["ABOBA"]}, "versions": {"jax": "1"}}
    good |= {"machine": {"cpus": 2}, "wall_time_seconds": 1.5, "smoke": True, "figures": []}
    good |= {"rows": [{"table": "a", "KL": 0.1, "sampler": "x"}, {"table": "a", "KL": None}]}
    good |= {"claims": [{"claim": "c", "measured": "m", "expected": "e", "holds": True}]}
    for name in ("bad", "good"):
        (folder / name).mkdir()
        results.write_json(folder / name / "result.json", good)
    document, write = as_json(folder / "bad" / "result.json")

    def load() -> None:
        broken = {}
        page = build(folder, broken=broken).read_text()
        assert 'id="good"' in page
        if broken:
            raise ValueError(broken["bad"])

    return document, write, load


def topic_model(model: Any) -> Callable[[Path], Case]:
    """Return the scenario of the header of a saved topic model."""

    def scenario(folder: Path) -> Case:
        rng = np.random.default_rng(0)
        topics = np.kron(np.eye(2), np.ones((1, 4))) / 4
        counts = rng.multinomial(20, rng.dirichlet([0.3, 0.3], 60) @ topics)
        path = folder / "model.safetensors"
        model.fit(sparse.csr_array(counts)).save(path)
        document, write = sealed_header(path)
        return document, write, lambda: type(model).load(path)

    return scenario


_FAST = {"sweeps": 3, "burn_in": 1, "num_draws": 2, "random_state": 0, "batch_size": 20}
_DEEP = {"start_documents": 20, **_FAST}
SCENARIOS: dict[str, Callable[[Path], Case]] = {
    "saved run": run_header,
    "state of a checkpoint": checkpoint_state,
    "identity of a checkpoint": checkpoint_identity,
    "manifest of shards": shard_manifest,
    "owner of units": owner_of_units,
    "Zarr metadata of the header": zarr_metadata("isotherm"),
    "Zarr metadata of draws": zarr_metadata("posterior/w"),
    "result on a page": report_page,
    "LDA, Gibbs": topic_model(BayesianLDA(2, max_iter=2, **_FAST)),
    "LDA, filter": topic_model(BayesianLDA(2, sampler="filter", max_iter=1, **_FAST)),
    "LDA, SCIR": topic_model(BayesianLDA(2, sampler="scir", **_FAST)),
    "DPFA, stream": topic_model(BayesianDPFA((2, 2), max_iter=1, **_DEEP)),
    "DPFA, filter": topic_model(BayesianDPFA((2, 2), inference="filtering", **_DEEP)),
}
