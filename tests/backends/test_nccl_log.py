"""Lines as NCCL and RCCL print them, by version: the formats are those of their sources."""

from __future__ import annotations

import pytest

from commbench.backends._nccl_log import Tuned, parse, unknown

PREFIX = "node-1:397:1012 [0] NCCL INFO "
# 2.32.3, src/enqueue.cc: "%s: %ld Bytes -> Algo %s proto %s channel{Lo..Hi}={%d..%d} cgaClusterSize %d"
GOLDEN = [
    (
        "AllReduce: 268435456 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15} cgaClusterSize 4",
        Tuned("AllReduce", 268435456, "nvls", "simple", 16),
    ),
    (
        "AllReduce: 8388608 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}",
        Tuned("AllReduce", 8388608, "ring", "ll128", 16),
    ),
    ("AllReduce: 4 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}", Tuned("AllReduce", 4, "tree", "ll", 1)),
    (
        "AllReduce: 4194304 Bytes -> Algo Tree proto Simple channel{Lo..Hi}={2..7}",
        Tuned("AllReduce", 4194304, "tree", "simple", 6),
    ),
    (
        "AllReduce: 64 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..3}",
        Tuned("AllReduce", 64, "nvls_tree", "simple", 4),
    ),
    (
        "ReduceScatter: 64 Bytes -> Algo COLLNET_DIRECT proto SIMPLE channel{Lo..Hi}={0..3}",
        Tuned("ReduceScatter", 64, "collnet_direct", "simple", 4),
    ),
    (
        "AllReduce: 64 Bytes -> Algo CollNetChain proto SIMPLE channel{Lo..Hi}={0..3}",
        Tuned("AllReduce", 64, "collnet_chain", "simple", 4),
    ),
    (
        "AllGather: 1024 Bytes -> Algo PAT proto SIMPLE channel{Lo..Hi}={0..1} cgaClusterSize 0",
        Tuned("AllGather", 1024, "pat", "simple", 2),
    ),
    # a build that adds the communicator
    (
        "AllReduce: 4 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0} comm 0x55a7a339db50",
        Tuned("AllReduce", 4, "tree", "ll", 1),
    ),
    # 2.23 and 2.24: "%s: %ld Bytes -> Algo %d proto %d time %f"
    (
        "AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008",
        Tuned("AllGather", 37756928, "ring", "simple", None),
    ),
    # 2.22 and older: "%ld Bytes -> Algo %d proto %d time %f"
    ("1048576 Bytes -> Algo 0 proto 1 time 84.250000", Tuned(None, 1048576, "tree", "ll128", None)),
    ("8 Bytes -> Algo 5 proto 0 time 0.100000", Tuned(None, 8, "nvls_tree", "ll", None)),
    ("8 Bytes -> Algo 6 proto 2 time 1e-05", Tuned(None, 8, "pat", "simple", None)),
    # symmetric kernels, 2.27 and 2.28 and later
    (
        "AllReduce [Symmetric]: 65536 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512",
        Tuned("AllReduce", 65536, "symk_agxll_r", None, 8),
    ),
    (
        "ReduceScatter [Symmetric]: 65536 Bytes -> Kernel ReduceScatter_RailA2A_LsaLD nchannels 16 nthreads 512 "
        "nWorks 1 cgaClusterSize 2",
        Tuned("ReduceScatter", 65536, "symk_raila2a_lsald", None, 16),
    ),
    # copy engines
    (
        "AlltoAll [Copy Engine]: 134217728 Bytes -> cudaMemcpy",
        Tuned("AlltoAll", 134217728, "copy_engine", None, None),
    ),
    (
        "AllGather [Copy Engine]: 16 Bytes -> cudaMemcpy; CE synchronization with NVLS",
        Tuned("AllGather", 16, "copy_engine", None, None),
    ),
    (
        "AllGather [Hierarchical CE]: 16 Bytes -> RMA proxy + CE",
        Tuned("AllGather", 16, "hierarchical_copy_engine", None, None),
    ),
    (
        "AllGather [Hierarchical CE]: 16 Bytes -> Rail Ring RMA proxy + CE",
        Tuned("AllGather", 16, "hierarchical_copy_engine", None, None),
    ),
    # RCCL: WarpSpeed, and paths beside ring and tree
    (
        "AllReduce: 4096 Bytes -> Algo RING* proto SIMPLE channel{Lo..Hi}={0..63}",
        Tuned("AllReduce", 4096, "warpspeed_ring", "simple", 64),
    ),
    ("AllGather impl selected: algo DDA", Tuned("AllGather", None, "dda", None, None)),
    ("AllReduce impl selected: algo SYM", Tuned("AllReduce", None, "symmetric", None, None)),
]


@pytest.mark.parametrize(("message", "tuned"), GOLDEN)
def test_a_line_is_read_as_it_is_printed(message: str, tuned: Tuned) -> None:
    assert parse(PREFIX + message + "\n") == [tuned]
    assert unknown(PREFIX + message) is None


@pytest.mark.parametrize(
    "prefix",
    [
        "h015:2073494:2073958 [2] NCCL INFO ",
        "rocm-3:24888:25056 [1] 1558545003174220 NCCL INFO ",  # RCCL's time stamps
        "[2026-05-13 18:01:41] node:229905:230588 [0] NCCL INFO ",  # NCCL_DEBUG_TIMESTAMP_FORMAT
        "0: node-1:397:397 [0] NCCL INFO ",  # srun --label
        "node:1:1 [-1] NCCL INFO ",
    ],
)
def test_whatever_stands_before_the_message_is_passed_over(prefix: str) -> None:
    assert parse(prefix + "16 Bytes -> Algo 1 proto 0 time 3.5") == [Tuned(None, 16, "ring", "ll", None)]


def test_a_log_is_read_in_its_order_and_other_lines_are_passed_over() -> None:
    log = "\n".join(
        [
            PREFIX + "NCCL_ALGO set by environment to ring",
            PREFIX + "  Algorithm   |                            Tree                  |",
            PREFIX + GOLDEN[2][0],
            PREFIX + "AllReduce: opCount 3 sendbuff 0x7f8b recvbuff 0x7f8b count 2 datatype 6 op 0 root 0",
            PREFIX + GOLDEN[1][0],
            "somebody else: 12 Bytes -> disk",
        ]
    )
    assert parse(log) == [GOLDEN[2][1], GOLDEN[1][1]]
    assert unknown(log) is None
    assert parse("") == []


@pytest.mark.parametrize(
    "message",
    [
        "AllReduce: 64 Bytes -> Algorithm RING / SIMPLE",
        "AllReduce: 64 Bytes -> Algo 9 proto 2 time 1.0",  # a number that stands for nothing known
        "AllReduce: 64 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={a..b}",
        "AllReduce [Telepathic]: 64 Bytes -> Kernel X nchannels 1",
    ],
)
def test_a_line_of_unknown_form_is_quoted_and_nothing_made_of_it(message: str) -> None:
    log = PREFIX + GOLDEN[0][0] + "\n" + PREFIX + message + "\n"
    assert unknown(log) == PREFIX + message
    assert parse(log) == [GOLDEN[0][1]]
