"""How busy the processors are, from the kernel's files as they are in containers and on machines."""

import pytest

from penstock.runtime.cpu_meter import CpuMeter


class Machine:
    def __init__(self, root):
        self.root = root
        self.now_s = 100.0

    def write(self, files):
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def meter(self):
        return CpuMeter(lambda: self.now_s, self.root)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 7})
    return Machine(tmp_path)


GROUP_V2 = {
    "sys/fs/cgroup/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/cpu.stat": "usage_usec 1000000\nuser_usec 1\n",
}
GROUP_V1 = {
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu/cpuacct.usage": "5000000000\n",
}
PROC = {"proc/stat": "cpu  100 50 50 700 100 9 9 9 0 0\ncpu0 1 2 3 4 5\n"}


def test_a_group_with_a_quota_is_measured_against_it(machine):
    machine.write(GROUP_V2 | PROC)
    meter = machine.meter()
    machine.now_s += 10.0
    machine.write({"sys/fs/cgroup/cpu.stat": "usage_usec 4000000\n"})
    assert meter.measure() == pytest.approx(100 * 3.0 / (10 * 1.5))


def test_a_group_without_a_quota_is_measured_against_its_processors(machine):
    machine.write(GROUP_V2 | {"sys/fs/cgroup/cpu.max": "max 100000"})
    meter = machine.meter()
    machine.now_s += 10.0
    machine.write({"sys/fs/cgroup/cpu.stat": "usage_usec 6000000\n"})
    assert meter.measure() == pytest.approx(100 * 5.0 / (10 * 4))


def test_a_group_of_the_first_version_is_measured_as_well(machine):
    machine.write(GROUP_V1 | PROC)
    meter = machine.meter()
    machine.now_s += 5.0
    machine.write({"sys/fs/cgroup/cpu/cpuacct.usage": "7000000000"})
    assert meter.measure() == pytest.approx(100 * 2.0 / (5 * 4))


def test_a_machine_is_measured_as_a_whole(machine):
    machine.write(PROC)
    meter = machine.meter()
    machine.write({"proc/stat": "cpu  130 50 70 720 130 0\n"})
    assert meter.measure() == pytest.approx(80.0)
    assert meter.measure() == 0.0  # nothing has changed since


def test_no_value_is_above_a_hundred(machine):
    machine.write(GROUP_V2)
    meter = machine.meter()
    machine.now_s += 1.0
    machine.write({"sys/fs/cgroup/cpu.stat": "usage_usec 9000000\n"})
    assert meter.measure() == 100.0


@pytest.mark.parametrize("files", [{}, {"proc/stat": "cpu  a b c d e\n"}, {"proc/stat": ""}])
def test_where_nobody_can_tell_there_is_no_value(machine, files):
    machine.write(files)
    assert machine.meter().measure() is None
