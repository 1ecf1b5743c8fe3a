"""Which device is meant, and how runs share several."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuber import CuberError
from cuber.cli.main import main
from cuber.core import device
from cuber.core.device import DeviceShare, find_device, find_devices
from cuber.experiments import Experiment
from cuber.experiments.devices import OnDevices

HERE = device.available_devices()


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_auto_is_the_best_device_that_there_is(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert find_device("auto") == find_device("cuda") == torch.device("cuda:0")
    assert find_device("cuda:1") == torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert find_device("auto") == torch.device("cpu")


def test_processes_of_torchrun_get_a_gpu_each(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert find_device("cuda") == torch.device("cuda:0")  # left over: torchrun sets more than that
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert find_device("cuda") == find_device("auto") == torch.device("cuda:1")
    assert find_device("cuda:0") == torch.device("cuda:0")


def test_cuda_means_all_gpus_of_a_grid_and_none_is_named_twice(two_gpus: None) -> None:
    assert list(map(str, find_devices("cuda"))) == ["cuda:0", "cuda:1"]
    assert list(map(str, find_devices("cuda:1, cpu"))) == ["cuda:1", "cpu"]
    with pytest.raises(CuberError, match="device 'cuda:1' is named twice in 'cuda,cuda:1': name it once"):
        find_devices("cuda,cuda:1")


@pytest.mark.parametrize("command", [["run"], ["grid", "split-digits"]])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "cuda:9",
            f"there is no device 'cuda:9' on this machine, only {', '.join(HERE)}: choose one of these, or auto",
        ),
        ("gpu", "device must be cpu, cuda, cuda:1 (or another number), mps or auto, not 'gpu'"),
        ("", "device must be cpu, cuda, cuda:1 (or another number), mps or auto, not ''"),
    ],
)
def test_a_device_that_is_not_there_is_one_sentence(
    command: list[str], name: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main([*command, "--device", name, "--out", str(tmp_path / "runs")])
    captured = capsys.readouterr()
    assert (exit.value.code, captured.out, captured.err) == (2, "", f"cuber: {sentence}\n")
    assert not (tmp_path / "runs").exists()


@given(st.integers(1, 4), st.lists(st.booleans(), max_size=30))
def test_no_device_has_two_runs_more_than_another_while_runs_only_begin(count: int, begins: list[bool]) -> None:
    share, users = DeviceShare([torch.device("cuda", n) for n in range(count)]), [0] * count
    running = []
    for begin in begins:
        if begin:
            running.append(share.lend())
            lent = running[-1].__enter__()
            assert users[lent.index] == min(users)
            users[lent.index] += 1
        elif running:
            before = list(share._users.values())
            running.pop().__exit__(None, None, None)
            users = list(share._users.values())
            assert sum(before) - sum(users) == 1


def note(experiment: Experiment, folder: Path, number: int) -> None:
    """Write down the device, and wait until the other run has."""
    (folder / str(number)).write_text(str(experiment.device))
    for _ in range(6000):
        if len(list(folder.iterdir())) == 2:
            return
        time.sleep(0.01)
    raise AssertionError("the other run has not begun")


def test_runs_at_the_same_time_are_on_different_devices(tmp_path: Path) -> None:
    devices = [torch.device("cuda:0"), torch.device("cuda:1")]
    with OnDevices(2, devices) as executor:
        for future in [executor.submit(note, Experiment(), tmp_path, number) for number in range(2)]:
            future.result()
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["cuda:0", "cuda:1"]
