"""Precisions that crash a machine are found out in a child process, and refused in one sentence."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import cuber
from cuber.cli.main import main
from cuber.errors import CuberError
from cuber.subspace import full_precision
from cuber.training import forward
from cuber.training.forward import PROBE, check_precision, float32_products, probe_failure
from tests.training import small

KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
CPU = torch.device("cpu")


def test_the_fate_of_the_child_is_reported() -> None:
    assert probe_failure(torch.bfloat16, "pass") is None
    assert probe_failure(torch.bfloat16, KILLED) == "a test process was killed by SIGILL"
    failed = "print('much'); raise RuntimeError('could not create a primitive')"
    assert probe_failure(torch.bfloat16, failed) == (
        "a test process failed: RuntimeError: could not create a primitive"
    )
    assert probe_failure(torch.bfloat16, "import sys; sys.exit(3)") == "a test process failed: exit code 3"


def test_the_real_probe_runs_where_single_precision_does() -> None:
    """Autocast to float32 is a warning and no autocast: products of all machines."""
    assert probe_failure(torch.float32, PROBE) is None


def test_a_child_is_started_once_per_process(tmp_path: Path) -> None:
    probe = f"open({str(tmp_path / 'started')!r}, 'a').write('x')"
    for _ in range(3):
        assert probe_failure(torch.bfloat16, probe) is None
    assert (tmp_path / "started").read_text() == "x"


def test_the_environment_does_not_change_what_the_child_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the real one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    probe = f"import sys; sys.path.append(sys.argv[1]); import torch; assert torch.__file__ == {torch.__file__!r}"
    assert probe_failure(torch.bfloat16, probe) is None


def test_a_child_that_cannot_be_started_or_never_ends_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "TIMEOUT", 0.5)
    failure = probe_failure(torch.bfloat16, "import time; time.sleep(60)")
    assert failure is not None
    assert "timed out after 0.5 seconds" in failure
    monkeypatch.setattr(sys, "executable", os.sep + "nowhere")
    failure = probe_failure(torch.bfloat16, "pass # no python")
    assert failure is not None
    assert "No such file" in failure


def test_only_what_was_asked_for_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "PROBE", KILLED)
    check_precision("float32", CPU)
    check_precision("bf16", torch.device("cuda"))
    with pytest.raises(CuberError, match=r"'bf16' does not work on this machine \(a test process was killed by SIGILL"):
        check_precision("bf16", CPU)


def test_a_refused_precision_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forward, "PROBE", KILLED)
    with pytest.raises(CuberError, match=r"use float32, or try again with .* ONEDNN_MAX_CPU_ISA=AVX512_CORE"):
        cuber.learn(
            cuber.CUBER(small.model()), small.stream(), **small.FAST, precision="bf16", directory=tmp_path / "run"
        )
    with pytest.raises(SystemExit) as exit:
        main(["run", "split-digits", "--precision", "bf16", "--out", str(tmp_path / "run")])
    captured = capsys.readouterr()
    assert (exit.value.code, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert captured.err.startswith("cuber: precision 'bf16' does not work on this machine")
    assert list(tmp_path.iterdir()) == []


def test_tf32_is_refused_where_it_would_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["run", "split-digits", "--precision", "tf32", "--out", str(tmp_path / "run")])
    captured = capsys.readouterr()
    sentence = "precision 'tf32' has no effect on cpu, only on NVIDIA GPUs since Ampere: use float32 or bf16"
    assert (exit.value.code, captured.out, captured.err) == (2, "", f"cuber: {sentence}\n")
    assert list(tmp_path.iterdir()) == []
    for capability, works in (((7, 5), False), ((8, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        with nullcontext() if works else pytest.raises(CuberError, match="no effect on cuda:0"):
            check_precision("tf32", torch.device("cuda:0"))


@pytest.mark.parametrize("by_user", ["highest", "high"])
def test_what_protects_old_tasks_is_never_rounded_to_tf32(by_user: str) -> None:
    gpu, convolutions = torch.device("cuda"), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(by_user)
    try:
        for precision, expected in (("tf32", "high"), ("float32", "highest"), ("bf16", "highest")):
            with float32_products(precision):
                assert torch.get_float32_matmul_precision() == expected
                assert torch.backends.cudnn.allow_tf32 == (precision == "tf32")
                with full_precision(gpu):
                    assert torch.get_float32_matmul_precision() == "highest"
            assert torch.get_float32_matmul_precision() == by_user
            assert torch.backends.cudnn.allow_tf32 == convolutions
    finally:
        torch.set_float32_matmul_precision("highest")
