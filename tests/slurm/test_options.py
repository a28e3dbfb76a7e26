"""What ``--slurm`` accepts and refuses, and how many tasks it asks for; without Slurm."""

from __future__ import annotations

import pytest

from flashladder.errors import FlashladderError
from flashladder.sweep.slurm import free, parse_options

# As sinfo pads its fields; node2 answers not, node3 is taken, node4 is in two partitions.
SINFO = """\
node0     |idle      |gpu:h100:8(S:0-1)    |gpu:h100:0(IDX:N/A)      |0/64/0/64
node1     |mix       |gpu:h100:4,gpu:a100:2|gpu:h100:3(IDX:0-2),gpu:a100:0(IDX:N/A)|48/16/0/64
node2     |idle*     |gpu:h100:8           |gpu:h100:0               |0/0/64/64
node3     |alloc     |gpu:h100:8           |gpu:h100:0               |64/0/0/64
node4     |idle~     |gpu:2                |gpu:0                    |0/8/0/8
node4     |idle~     |gpu:2                |gpu:0                    |0/8/0/8
node5     |drain     |gpu:2                |gpu:0                    |0/0/8/8
node6     |idle      |(null)               |gpu:0                    |0/4/0/4
"""


def test_every_key_is_read() -> None:
    text = (
        "partition=gpu, account=me,qos=high,constraint=h100&ib,reservation=r1,gres=gpu:h100:1,gpu=h100,cpus=4,mem=32G"
    )
    found = parse_options(f"{text},time=1-2:03,array=8")
    assert found.site == {
        "partition": "gpu", "account": "me", "qos": "high", "constraint": "h100&ib", "reservation": "r1",
        "gres": "gpu:h100:1", "mem": "32G",
    }  # fmt: skip
    assert (found.gpu, found.cpus, found.array) == ("h100", 4, 8)
    assert found.minutes == 26 * 60 + 3
    assert parse_options("").site == {}


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("0:61", 2), ("2:00:00", 120), ("1-0", 1440), ("1-1:30", 1530), ("0-0:0:1", 1)],
)
def test_times_are_slurms(text: str, minutes: int) -> None:
    assert parse_options(f"time={text}").minutes == minutes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("partitions=gpu", "--slurm: unknown key: expected one of partition, account, "),
        ("partitions=gpu", "did you mean 'partition'?"),
        ("gpu", "--slurm: gpu needs a value"),
        ("partition=", "--slurm: partition needs a value"),
        ("partition=a b", "--slurm: partition needs a value"),
        ("account=$(id)", "--slurm: account needs a value"),
        ("qos=a,qos=b", "--slurm: qos twice"),
        ("array=0", "--slurm: array is no number of that size: expected 1 to 1000, found 0"),
        ("array=eight", "found eight"),
        ("array=1001", "found 1001"),
        ("cpus=-1", "found -1"),
        ("time=0", "--slurm: no time at all"),
        ("time=2h", "--slurm: time is none of Slurm's: expected minutes, M:S, "),
        ("time=1:2:3:4", "found 1:2:3:4"),
        ("time=-5", "found -5"),
        ("gpu=b200", "--slurm: unknown GPU: expected one of "),
        (",", "--slurm: unknown key"),
    ],
)
def test_a_mistake_is_one_line(text: str, said: str) -> None:
    with pytest.raises(FlashladderError) as caught:
        parse_options(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_free_is_what_no_job_holds_on_nodes_that_take_jobs() -> None:
    cpus = 64 + 16 + 8 + 4
    assert free(SINFO) == (8 + 1 + 2 + 2, cpus)
    assert free(SINFO, "h100") == (8 + 1, cpus)
    assert free(SINFO, "v100") == (0, cpus)
