"""The tables of time and memory, with every number computed by hand."""

from __future__ import annotations

from tests.made_up import result
from tests.report.tables import CIFAR, table, texts


def test_time_relative_to_gpm_on_the_same_seeds():
    gpm = [result("gpm", 0, benchmark=CIFAR), result("gpm", 1, benchmark=CIFAR, seconds=[30.0, 10.0, 20.0])]
    cuber = [result("cuber", n, benchmark=CIFAR, seconds=[20.0, 30.0, 40.0]) for n in (0, 1, 2)]
    one = table("time", *gpm, *cuber)
    # Seconds per task: gpm 10 and 20, cuber 30 three times; 30 / 10 and 30 / 20, mean 2.25, deviation 1.5 / sqrt(2)
    assert texts(one) == {
        "gpm": ["2", "15.00±7.07", "1.00±0.00", "1.00"],
        "cuber": ["3", "30.00±0.00", "2.25±1.06", "1.86"],
    }
    assert one.notes == []


def test_no_time_is_relative_to_none():
    assert texts(table("time", result("gpm", seconds=[0.0])))["gpm"] == ["1", "0.00", "-"]


def test_times_of_different_machines_are_marked():
    other = {"system": "Linux", "processor": "x86_64", "device": "cuda:0", "threads": 1}
    one = table("time", result("gpm"), result("gpm", 1, machine=other))
    assert one.notes == [
        "not all on one machine and version: system Linux, processor x86_64, device cpu, threads 1; "
        "system Linux, processor x86_64, device cuda:0, threads 1"
    ]


def test_memory_by_kind():
    cuber = [result(seed=n, bytes=[{"bases": 9}, {"bases": 10**6 * n, "gradients": 2500}]) for n in (1, 2)]
    one = table("memory", *cuber, result("gpm"), result("finetune", bytes=[{}]))
    # 1.5 MB of bases on average, and 0.0025 MB of gradients
    assert texts(one) == {
        "finetune": ["1", "0.000", "0.00", "nothing"],
        "gpm": ["1", "1.000", "1.00", "bases 1.000"],
        "cuber": ["2", "1.502", "1.50", "bases 1.500, gradients 0.003"],
    }
    assert one.plain()[2]["megabytes_of_gradients"] == 0.0025
    assert one.plain()[1]["megabytes_of_gradients"] == 0
