"""Names that many modules use, each here alone: dtypes, keys of GPUs, the kernels' symbol, Nsight Compute's metrics."""

from __future__ import annotations

from typing import Literal, get_args

__version__ = "0.1.0"  # of the package; pyproject.toml and the wheels of the iterations have the same
Dtype = Literal["fp16", "bf16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
EXAMPLE = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"  # a configuration
GPUS = ("a100", "rtx3090", "h200")  # for which every iteration has a configuration
PUBLISHED_GPU = "a100"  # of the published ladder, whose configurations are meant where no other GPU is named
ReferenceName = Literal["cudnn", "fa3", "fa4", "flash-attn"]  # of what can be timed beside the kernels and FA2
REFERENCES: tuple[ReferenceName, ...] = get_args(ReferenceName)
LIBRARIES = ("cudnn", "fa3", "fa4")  # whose best, in each cell, a claim to be fastest is over
HEADLINE_LENGTH = 4096  # seq_len of the first table, and of every figure without one
DEFAULT_ARCH = "sm_80"  # of commands, where neither a person nor a GPU names one
INTERMEDIATES = ("S", "S_scaled", "m", "P", "P16", "l", "O_rescaled", "O", "out")  # of a trace, as they are computed
TRACE_INPUTS = ("normal", "range", "identity", "ones")  # what Q, K and V hold in one
KERNEL = "flash_fwd_kernel"  # the symbol of every kernel of ours

CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
GLOBAL_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"
GLOBAL_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_{}.sum"  # each for ``ld``, ``st`` or ``atom``
SECTORS = (GLOBAL_SECTORS.format("ld"), GLOBAL_SECTORS.format("st"))
LDSM = "smsp__inst_executed_op_ldsm.sum"
TENSOR = "smsp__inst_executed_pipe_tensor.sum"
INSTRUCTIONS = "smsp__inst_executed.sum"
REGISTERS = "launch__registers_per_thread"
DURATION = "gpu__time_duration.sum"  # ns in base units
CYCLES = "sm__cycles_elapsed.max"
SEQ_LEN = 256  # positions of `emulate` and `trace` where none are given
