"""Starting over: the run that was there is lost only when the new one has got somewhere; and who may look meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from torch import nn

import cuber
from cuber.errors import CuberError, CuberWarning
from cuber.loggers import Logger
from cuber.runs.checkpoint import Checkpoints
from cuber.runs.directory import EVERYTHING, OWN, PreviousRun, remove
from cuber.runs.lock import is_held
from cuber.streams import ImageSplit, Transform
from cuber.training import RunDirectory
from cuber.training.describe import contents as contents_of
from tests.training import small


def learn(directory: Any, model: nn.Module | None = None, **changes: Any) -> cuber.Result:
    learner = cuber.FineTune(model if model is not None else small.model(2))
    return cuber.learn(learner, small.stream(2), **{**small.FAST, "epochs": 2, **changes}, directory=directory)


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_new_run_that_fails_at_once_gives_the_old_one_back(tmp_path: Path) -> None:
    learn(tmp_path)
    (tmp_path / "checkpoint" / "mine").mkdir()
    (tmp_path / "notes.txt").write_text("of the user")
    before = contents(tmp_path)
    with pytest.raises(CuberError, match="the loss is"):
        learn(RunDirectory(tmp_path, fresh=True), lr=1e30)
    assert contents(tmp_path) == before
    assert (tmp_path / "checkpoint" / "mine").is_dir()


class KilledAt(Logger):
    """What is on disk when the first epoch is over, as a process leaves it that is killed then."""

    def __init__(self, directory: Path, copy: Path) -> None:
        self.directory, self.copy = directory, copy

    def epoch(self, *_: Any) -> None:
        if not self.copy.exists():
            shutil.copytree(self.directory, self.copy)


def test_a_new_run_that_is_killed_gives_the_old_one_back_until_it_has_a_checkpoint(tmp_path: Path) -> None:
    learn(tmp_path / "run")
    before = contents(tmp_path / "run")
    killed = KilledAt(tmp_path / "run", tmp_path / "killed")
    learn(RunDirectory(tmp_path / "run", fresh=True, loggers=[killed]), lr=0.2)
    assert "replaced/result.json" in contents(tmp_path / "killed")
    with pytest.raises(CuberError, match=r"training.lr was 0.1 and is now 0.2"):
        learn(tmp_path / "killed", lr=0.2)
    assert contents(tmp_path / "killed") == before
    assert not (tmp_path / "run" / "replaced").exists()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["training"]["lr"] == 0.2


@pytest.mark.parametrize("moved", range(4))
def test_killed_while_files_move(tmp_path: Path, moved: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)
    renames: list[Any] = []
    rename = Path.rename

    def die(self: Path, target: Path) -> Path:
        renames.append(target)
        if len(renames) > moved:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", die)
    with pytest.raises(KeyboardInterrupt):
        PreviousRun(tmp_path, "abc").set_aside()
    monkeypatch.undo()
    PreviousRun(tmp_path, "abc").settle(keep_new=True)
    assert contents(tmp_path) == {name: name.encode() for name in "abc"}
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("logger", ["tensorboard", "wandb", "mlflow-run"])
def test_what_loggers_leave_is_not_foreign(tmp_path: Path, logger: str) -> None:
    (tmp_path / logger).mkdir()
    learn(tmp_path)
    learn(RunDirectory(tmp_path, fresh=True), lr=0.2)
    assert not (tmp_path / logger).exists()


def test_a_folder_that_many_have_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(CuberError, match="not those of a run"):
        learn(RunDirectory(tmp_path, fresh=True))


@pytest.mark.parametrize("finished", [True, False])
def test_a_directory_that_lost_its_configuration_can_be_started_over(tmp_path: Path, finished: bool) -> None:
    learn(tmp_path)
    (tmp_path / "config.toml").unlink()
    if not finished:
        (tmp_path / "result.json").unlink()
    with pytest.raises(CuberError, match=r"config.toml .*\(No such file or directory\): .*start over with --fresh"):
        learn(tmp_path)
    assert learn(RunDirectory(tmp_path, fresh=True)).accuracy


def test_a_checkpoint_folder_that_is_a_file(tmp_path: Path) -> None:
    result = learn(tmp_path)
    (tmp_path / "result.json").unlink()
    (tmp_path / "checkpoint").rename(tmp_path / "elsewhere")
    (tmp_path / "checkpoint").touch()
    with pytest.raises(CuberError, match="is a file where a folder should be"):
        learn(tmp_path)
    assert learn(RunDirectory(tmp_path, fresh=True)).accuracy == result.accuracy


@pytest.mark.parametrize("text", ["", "experiment = 3", "= [", "[experiment]\nseed = 0\n", "[training]\n"])
def test_a_damaged_configuration_is_a_short_sentence(tmp_path: Path, text: str) -> None:
    learn(tmp_path)
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(CuberError, match="start over with --fresh") as error:
        learn(tmp_path)
    assert len(str(error.value)) < 600 + len(str(tmp_path))
    learn(RunDirectory(tmp_path, fresh=True))


@pytest.mark.parametrize("change", [{"accuracy": []}, {"tasks": 3}, {"pool": 3}, {"seed": "0"}])
def test_a_damaged_result_says_what_to_do_and_that_works(tmp_path: Path, change: dict[str, Any]) -> None:
    accuracy = learn(tmp_path).accuracy
    path = tmp_path / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CuberError, match=r"result.json is damaged, .*: remove it, and the same run writes it again"):
        learn(tmp_path)
    path.unlink()
    assert learn(tmp_path).accuracy == accuracy


# What is compared


def test_another_model_of_the_same_size_is_refused(tmp_path: Path) -> None:
    def model(activation: nn.Module, dropout: float = 0.1) -> nn.Module:
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(8, 16), activation, nn.Dropout(dropout), nn.Linear(16, 16))
        return cuber.MultiHead(backbone, 16, [3, 3])

    learn(tmp_path, model(nn.ReLU()))
    for other in (model(nn.GELU()), model(nn.ReLU(), 0.2)):
        with pytest.raises(CuberError, match=r"experiment.architecture was 'MultiHead \w{16}' and is now 'MultiHead"):
            learn(tmp_path, other)
    learn(tmp_path, model(nn.ReLU()))


def test_another_loss_or_optimizer_is_refused(tmp_path: Path) -> None:
    learn(tmp_path)
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    with pytest.raises(CuberError, match=r"training.loss was 'torch.nn.functional.cross_entropy' and is now .*Loss\("):
        learn(tmp_path, loss_fn=smooth)
    with pytest.raises(CuberError, match=r"training.optimizer was 'SGD' and is now 'SGD\(momentum=0.9\)'"):
        learn(tmp_path, optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9))


@pytest.mark.parametrize("what", ["x", "y"])
def test_other_data_of_the_same_name_and_size_are_refused(tmp_path: Path, what: str) -> None:
    stream = small.stream(2)
    cuber.learn(cuber.FineTune(small.model(2)), stream, **small.FAST, directory=tmp_path)
    values: Any = getattr(stream[1].train, what)
    values[-1] = 1 - values[-1]
    with pytest.raises(CuberError, match=r"experiment.contents was '\w{16}' and is now '\w{16}'"):
        cuber.learn(cuber.FineTune(small.model(2)), stream, **small.FAST, directory=tmp_path)


class Pairs(torch.utils.data.Dataset):
    """Of which a run knows no more than how many there are."""

    def __init__(self, part: Any, shift: float) -> None:
        self.part, self.shift = part, shift

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, place: int) -> Any:
        return self.part.x[place] + self.shift, int(self.part.y[place])


def test_what_a_run_cannot_know_of_its_data_is_said_about_it(tmp_path: Path) -> None:
    def learn_pairs(shift: float, about: dict[str, str]) -> cuber.Result:
        tasks = [
            cuber.Task(task.name, Pairs(task.train, shift), Pairs(task.test, shift), classes=3)
            for task in small.stream(2)
        ]
        learner = cuber.FineTune(small.model(2))
        return cuber.learn(learner, cuber.Stream("pairs", tasks), **small.FAST, directory=tmp_path, about=about)

    learn_pairs(0.0, {"data": "first version"})
    with pytest.raises(CuberError, match=r"experiment.data was 'first version' and is now 'second version'"):
        learn_pairs(1.0, {"data": "second version"})
    with pytest.raises(CuberError, match="about: the name 'contents' is reserved"):
        learn_pairs(1.0, {"contents": "second version"})


@pytest.mark.parametrize(
    ("about", "sentence"),
    [
        ({"seed": 5}, "about: the name 'seed' is reserved"),
        ({"benchmark": "other"}, "about: the name 'benchmark' is reserved"),
        ({"options": "second version"}, "about: experiment.options must be a table of names and values"),
        ({"method": 3}, "about: experiment.method must be text"),
    ],
)
def test_what_is_said_about_a_run_can_be_read_again_and_hides_nothing(
    tmp_path: Path, about: dict[str, Any], sentence: str
) -> None:
    learner = cuber.FineTune(small.model())
    with pytest.raises(CuberError, match=sentence):
        cuber.learn(learner, small.stream(), **small.FAST, directory=tmp_path / "run", about=about)
    assert not (tmp_path / "run" / "config.toml").exists()


@pytest.mark.parametrize("changed", ["picture", "mean"])
def test_other_pictures_of_the_same_number_are_told_apart(changed: str) -> None:
    def digest(images: np.ndarray, mean: float) -> str:
        part = ImageSplit(images, torch.arange(9), torch.arange(9) % 3, Transform((mean,), (0.3,)))
        return contents_of(cuber.Stream("pictures", [cuber.Task("first", part, part)]))

    images = np.arange(9 * 16, dtype=np.uint8).reshape(9, 4, 4)
    other = images.copy()
    other[8, 3, 3] += changed == "picture"
    assert digest(images, 0.5) == digest(images.copy(), 0.5)
    assert digest(images, 0.5) != digest(other, 0.4 if changed == "mean" else 0.5)


def test_a_configuration_without_a_value_is_another_configuration(tmp_path: Path) -> None:
    learn(tmp_path)
    (tmp_path / "result.json").unlink()
    config = tmp_path / "config.toml"
    config.write_text("\n".join(line for line in config.read_text().splitlines() if not line.startswith("loss = ")))
    with pytest.raises(CuberError, match=r"training.loss was not there and is now 'torch"):
        learn(tmp_path)


def test_a_run_of_the_version_before_is_refused_and_its_result_is_not(tmp_path: Path) -> None:
    result = learn(tmp_path)
    for path in (tmp_path / "checkpoint").glob("*.json"):
        path.write_text(path.read_text().replace('"format"', '"something else"', 1))
    with pytest.warns(CuberWarning, match=r"the model is not restored: checkpoint .* another version of cuber"):
        assert learn(tmp_path).to_dict() == result.to_dict()
    (tmp_path / "result.json").unlink()
    before = contents(tmp_path)
    with pytest.raises(CuberError, match=r"another version of cuber \(format 1, .*: start over with --fresh"):
        learn(tmp_path)
    assert contents(tmp_path) == before
    assert learn(RunDirectory(tmp_path, fresh=True)).accuracy == result.accuracy


# Who holds it


def test_a_finished_run_is_shown_to_all_who_ask(tmp_path: Path) -> None:
    """Without the lock, so that a directory that cannot be written to can be shown too."""
    result = learn(tmp_path)
    with FileLock(tmp_path / ".lock"):
        assert learn(tmp_path).to_dict() == result.to_dict()
        with pytest.raises(CuberError, match="another process is using"):
            learn(RunDirectory(tmp_path, fresh=True))


def test_whether_somebody_is_at_work_can_be_asked(tmp_path: Path) -> None:
    assert is_held(tmp_path) is False
    assert list(tmp_path.iterdir()) == []
    with RunDirectory(tmp_path):
        assert is_held(tmp_path) is True
        with pytest.raises(CuberError, match="another process is using"):
            learn(tmp_path)
    assert is_held(tmp_path) is False


def test_the_lock_of_a_file_that_was_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our opening the file and our lock, its holder removed it, and a third has made and locked a new one."""
    acquire = FileLock.acquire

    def too_late(self: FileLock, *arguments: Any, **options: Any) -> Any:
        held = acquire(self, *arguments, **options)
        (tmp_path / ".lock").unlink()
        (tmp_path / ".lock").touch()
        return held

    monkeypatch.setattr(FileLock, "acquire", too_late)
    with pytest.raises(CuberError, match="another process is using"):
        learn(tmp_path)


def test_a_failed_run_that_others_should_know_of_keeps_its_word(tmp_path: Path) -> None:
    with pytest.raises(CuberError, match="the loss is"):
        learn(RunDirectory(tmp_path, keep_failures=True), lr=1e30)
    assert {"config.toml", "error.json"} <= {path.name for path in tmp_path.iterdir()}
    assert not Checkpoints(tmp_path / "checkpoint").any()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def folder(path: Path) -> None:
    path.mkdir()


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)))


OBSTACLES = [pipe, link_to_itself, folder, garbage]


def replace(path: Path, make: Any) -> None:
    remove(path.parent, [path.name])
    make(path)


@pytest.mark.parametrize("make", OBSTACLES)
@pytest.mark.parametrize("name", EVERYTHING)
def test_starting_over_replaces_whatever_has_the_name_of_a_file(tmp_path: Path, name: str, make: Any) -> None:
    learn(tmp_path)
    replace(tmp_path / name, make)
    learn(RunDirectory(tmp_path, fresh=True))
    assert {path.name for path in tmp_path.iterdir()} == {".lock", *OWN} - {"error.json"}
    assert cuber.Result.load(tmp_path).accuracy


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *((name, make) for name in ("replaced", ".replaced") for make in (pipe, link_to_itself, garbage)),
        *((name, make) for name in (".lock", ".lease") for make in (pipe, link_to_itself, folder)),
    ],
)
def test_what_is_in_the_way_of_starting_over_is_named(tmp_path: Path, name: str, make: Any) -> None:
    """A pipe was waited for; files that were moved to a folder of this name could not be moved back."""
    learn(tmp_path)
    before = contents(tmp_path)
    replace(tmp_path / name, make)
    with pytest.raises(CuberError, match=f"{re.escape(str(tmp_path / name))} .*: remove it"):
        learn(RunDirectory(tmp_path, fresh=True))
    remove(tmp_path, [name])
    assert contents(tmp_path) == before
    assert learn(RunDirectory(tmp_path, fresh=True)).accuracy


@pytest.mark.parametrize("name", ["log.jsonl", "metrics.csv"])
def test_resuming_does_not_wait_for_the_reader_of_a_pipe(tmp_path: Path, name: str) -> None:
    learn(tmp_path)
    (tmp_path / "result.json").unlink()
    replace(tmp_path / name, pipe)
    with pytest.raises(OSError, match=name):
        learn(tmp_path)


def test_a_link_to_itself_is_replaced_by_the_result(tmp_path: Path) -> None:
    result = learn(tmp_path)
    replace(tmp_path / "result.json", link_to_itself)
    assert learn(tmp_path).accuracy == cuber.Result.load(tmp_path).accuracy == result.accuracy
