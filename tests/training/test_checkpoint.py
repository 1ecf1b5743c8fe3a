"""Checkpoints: whatever state goes in comes out, and a damaged one is noticed."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuber.errors import CuberError, CuberWarning
from cuber.runs.checkpoint import FORMAT, Checkpoints
from cuber.runs.serialize import flatten, unflatten

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]

tensors = st.builds(
    lambda shape, dtype, seed: torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(seed)).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | tensors
keys = st.text(max_size=4) | st.integers() | st.sampled_from(["$tensor", "$dict", "$"])
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@settings(max_examples=60, deadline=None)
@given(tree=trees)
def test_any_state_comes_back_as_it_was(tree: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    checkpoints = Checkpoints(tmp_path_factory.mktemp("run") / "checkpoint")
    checkpoints.save(tree)
    assert same(checkpoints.load(), tree)


def test_numpys_random_state_comes_back() -> None:
    before = np.random.default_rng(3).bit_generator.state, np.random.RandomState(4).get_state()
    assert same(unflatten(*flatten(before)), before)


def test_tensors_with_the_same_content_are_kept_once_and_come_back_apart() -> None:
    weights = torch.arange(6.0)
    plain, kept = flatten({"now": weights, "best": weights.clone(), "other": weights.double(), "flat": weights[None]})
    assert len(kept) == 3
    back = unflatten(plain, kept)
    back["now"].add_(1)
    assert torch.equal(back["best"], weights)


def test_what_cannot_be_saved_is_named() -> None:
    with pytest.raises(CuberError, match=r"a set cannot be saved \(in the state at .learner.odd\[1\]\)"):
        flatten({"learner": {"odd": [1, {2}]}})


def test_the_last_two_are_kept_and_the_newest_is_read(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoint")
    assert checkpoints.load() is None
    for step in range(5):
        checkpoints.save({"step": step, "weights": torch.full((3,), float(step))})
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == [
        "000004.json",
        "000004.safetensors",
        "000005.json",
        "000005.safetensors",
    ]
    assert checkpoints.load()["step"] == 4


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def one_byte_changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def another_thing(path: Path) -> None:
    path.write_text("[]\n")


def removed(path: Path) -> None:
    path.unlink()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


DAMAGES = [cut_short, emptied, one_byte_changed, another_thing, removed, a_pipe, a_link_to_itself]


@pytest.mark.parametrize("name", ["000002.json", "000002.safetensors"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_noticed_and_the_one_before_is_used(tmp_path: Path, name: str, damage: Any) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save({"step": step, "weights": torch.full((30,), float(step))})
    damage(tmp_path / name)
    if damage is removed and name.endswith("json"):  # never sealed: as if the process had stopped between the two files
        assert checkpoints.load()["step"] == 1
    else:
        with pytest.warns(CuberWarning, match=r"000002.json is damaged .*: the one before it is used"):
            assert checkpoints.load()["step"] == 1


def test_the_last_two_that_are_whole_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save({"step": step})
    emptied(tmp_path / "000002.json")
    resumed = Checkpoints(tmp_path)
    with pytest.warns(CuberWarning):
        resumed.load()
    resumed.save({"step": 3})
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["000001.json", "000003.json"]
    emptied(tmp_path / "000003.json")
    with pytest.warns(CuberWarning):
        assert Checkpoints(tmp_path).load() == {"step": 1}


def test_folders_of_others_are_no_hindrance(tmp_path: Path) -> None:
    for name in (".ipynb_checkpoints", "mine", ".1.2.3"):
        (tmp_path / name).mkdir()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"step": 1})
    assert checkpoints.load() == {"step": 1}


def test_a_file_in_the_place_of_the_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").touch()
    with pytest.raises(CuberError, match=r"checkpoint is a file where a folder should be: start over with --fresh"):
        Checkpoints(tmp_path / "checkpoint").load()


def test_where_none_is_whole_a_sentence_says_so(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"step": 1})
    cut_short(tmp_path / "000001.json")
    with pytest.warns(CuberWarning), pytest.raises(CuberError, match=r"no checkpoint in .* is valid"):
        checkpoints.load()


@pytest.mark.parametrize("written", [None, FORMAT - 1, FORMAT + 1, "new"])
def test_a_checkpoint_of_another_version_is_refused_not_misread(tmp_path: Path, written: Any) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save({"step": step})
    path = tmp_path / "000002.json"
    head, _, text = path.read_text().partition("\n")
    values = json.loads(head)
    assert values.pop("format") == FORMAT
    path.write_text(json.dumps(values if written is None else {**values, "format": written}) + "\n" + text)
    sentence = (
        rf"000002.json was written by another version of cuber \(format {written or 1}, .*: start over with --fresh"
    )
    with pytest.raises(CuberError, match=sentence):
        checkpoints.load()


def test_what_a_killed_writer_left_is_tidied_up(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    (tmp_path / ".000001.safetensors.x3f").write_bytes(b"half")
    (tmp_path / "000001.safetensors").write_bytes(b"whole, but never sealed")
    checkpoints.save({"step": 1})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001.json", "000001.safetensors"]
    assert checkpoints.load() == {"step": 1}


FULL_DISK = """
import sys, torch
from cuber.runs.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
checkpoints.save({"step": 1})
try:
    checkpoints.save({"step": 2, "weights": torch.zeros(100_000)})
except OSError as error:
    print(checkpoints.load(), error.strerror)
"""


def test_a_full_disk_leaves_the_one_before(tmp_path: Path) -> None:
    def small_files_only() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, preexec_fn=small_files_only, capture_output=True, text=True, timeout=300)
    assert done.stdout == "{'step': 1} File too large\n", done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001.json", "000001.safetensors"]
