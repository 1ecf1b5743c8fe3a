"""Loggers: the services are told numbers by name, and the same run when it goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuber.errors import CuberError, CuberWarning
from cuber.loggers import CsvFile, JsonLines, Logger, make_logger

CONFIG = {"experiment": {"method": "cuber", "seed": 0}}
EPOCH = {"train_loss": 0.5, "lr": 0.1, "validation_loss": None}


class Service:
    """Stands where a service's library would: notes what it is asked to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, arguments, options))
            return SimpleNamespace(info=SimpleNamespace(run_id="run-7"))

        return called

    def names(self) -> list[str]:
        return [name for name, _, _ in self.calls]


def tell(logger: Logger, position: Any = None) -> Any:
    logger.start(CONFIG, position)
    logger.epoch(0, "first", 1, EPOCH)
    logger.evaluation(0, [90.0, None])
    logger.event("finished", {"acc": 90.0})
    logger.close()
    return logger.position()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Service:
    service = Service()
    monkeypatch.setitem(sys.modules, request.param, service)
    return service


@pytest.mark.parametrize("library", ["wandb"], indirect=True)
def test_weights_and_biases(tmp_path: Path, library: Service) -> None:
    position = tell(make_logger("wandb", tmp_path))
    assert library.names() == ["init", "log", "log", "finish"]
    assert library.calls[1][1:] == (({"task 0/train_loss": 0.5, "task 0/lr": 0.1},), {"step": 1})
    assert library.calls[2][1:] == (({"accuracy/task 0": 90.0, "accuracy/mean": 90.0},), {"step": 1})
    tell(make_logger("wandb", tmp_path), position)
    first, second = (options for name, _, options in library.calls if name == "init")
    assert first["id"] == second["id"]
    assert library.calls[5][2] == {"step": 2}
    tell(make_logger("wandb", tmp_path))
    assert library.calls[-4][2]["id"] != first["id"]


@pytest.mark.parametrize("library", ["mlflow"], indirect=True)
def test_mlflow(tmp_path: Path, library: Service) -> None:
    position = tell(make_logger("mlflow", tmp_path))
    assert library.names() == ["start_run", "log_params", "log_metrics", "log_metrics", "end_run"]
    assert library.calls[1][1] == ({"experiment.method": "cuber", "experiment.seed": 0},)
    tell(make_logger("mlflow", tmp_path), position)
    assert library.calls[5] == ("start_run", (), {"run_id": "run-7"})
    assert "log_params" not in library.names()[5:]


@pytest.mark.parametrize("library", ["torch.utils.tensorboard"], indirect=True)
def test_tensorboard(tmp_path: Path, library: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Service()
    monkeypatch.setattr(
        library, "SummaryWriter", lambda *_, **options: writer.calls.append(("new", (), options)) or writer
    )
    position = tell(make_logger("tensorboard", tmp_path))
    assert ("add_scalar", ("accuracy/task 0", 90.0, 1), {}) in writer.calls
    tell(make_logger("tensorboard", tmp_path), position)
    assert [options for name, _, options in writer.calls if name == "new"] == [{"purge_step": None}, {"purge_step": 2}]
    assert writer.names().count("close") == 2


def test_what_is_not_installed_or_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(CuberError, match=r"the wandb logger needs pip install 'cuber-learn\[wandb\]'"):
        make_logger("wandb", tmp_path)
    with pytest.raises(CuberError, match="there is no logger 'wandbb'; did you mean 'wandb'"):
        make_logger("wandbb", tmp_path)


@pytest.mark.parametrize("kind", [JsonLines, CsvFile])
def test_files_drop_what_is_about_to_happen_again(tmp_path: Path, kind: type[JsonLines | CsvFile]) -> None:
    logger = kind(tmp_path / "log")
    logger.start(CONFIG, None)
    logger.epoch(0, "first", 1, EPOCH)
    position, kept = logger.position(), (tmp_path / "log").read_text()
    logger.epoch(0, "first", 2, EPOCH)
    again = kind(tmp_path / "log")
    again.start(CONFIG, position)
    assert (tmp_path / "log").read_text() == kept
    again.start(CONFIG, None)
    assert again.position() < position


class Failing(Service):
    """A service that goes down when it is asked for one thing."""

    def __init__(self, fails_at: str) -> None:
        super().__init__()
        self.fails_at = fails_at

    def __getattr__(self, name: str) -> Any:
        if name == self.fails_at:
            raise OSError("no such store\nand a page of advice")
        return super().__getattr__(name)


@pytest.mark.parametrize(("name", "call"), [("wandb", "init"), ("mlflow", "start_run")])
def test_a_service_that_cannot_start_is_one_sentence(
    name: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, Failing(call))
    with pytest.raises(CuberError, match=f"^the {name} logger cannot start: no such store$"):
        tell(make_logger(name, tmp_path))


@pytest.mark.parametrize(("name", "call"), [("wandb", "log"), ("mlflow", "log_metrics"), ("mlflow", "end_run")])
def test_a_service_that_goes_down_does_not_take_the_run_with_it(
    name: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, Failing(call))
    with pytest.warns(CuberWarning, match=f"^{name} failed and gets no more values: no such store$") as told:
        assert tell(make_logger(name, tmp_path)) == 1
    assert len(told) == 1
