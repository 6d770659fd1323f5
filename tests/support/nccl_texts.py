"""What torch, NCCL, gloo and CUDA print, in their own words: name -> text, what it is a sign of, what it means."""

from __future__ import annotations

_NCCL = "DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, "
_SYSTEM = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
_CUDA = "ncclUnhandledCudaError: Call to CUDA function failed.\n"
_USAGE = "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
_REMOTE = (
    "remote process exited or there was a network error, NCCL version 2.26.2\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
)
_WATCHDOG = "[PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: "

LATE = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, "
    "NumelOut=8, Timeout(ms)=240000) ran for 240011 milliseconds before timing out."
)


def _of(code: str, detail: str, last: str) -> str:
    return f"{_NCCL}{code} (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n{detail}Last error:\n{last}"


TEXTS: dict[str, tuple[str, str, str]] = {
    "a late collective": (LATE, "wait", ""),
    "an id that did not come": (
        (
            "DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
            "key-value store by key '0', but store->get('0') got error: wait timeout after 24000ms"
        ),
        "wait",
        "",
    ),
    "a store": ("DistStoreError: wait timeout after 1000ms, keys: /x", "wait", ""),
    "a peer that is gone": (
        f"{_NCCL}{_REMOTE}Last error:\nsocketPollConnect: connect returned Connection refused, error retries (35)",
        "victim",
        "",
    ),
    "a peer that is gone, on gloo": (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:1",
        "victim",
        "",
    ),
    "a socket that was reset": (
        _of("unhandled system error", _SYSTEM, "socketProgress: Connection closed by remote peer host<57000>"),
        "victim",
        "",
    ),
    "an abort": ("DistBackendError: NCCL communicator was aborted on rank 1.", "victim", ""),
    "out of memory": (
        _of("unhandled cuda error", _CUDA, "Cuda failure 2 'out of memory'"),
        "cause",
        "the GPU's memory is full",
    ),
    "out of memory in torch": (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB",
        "cause",
        "the GPU's memory is full",
    ),
    "full shared memory": (
        _of(
            "unhandled system error",
            _SYSTEM,
            "Error while creating shared memory segment /dev/shm/nccl-Zx (size 33030528), error: No space left on "
            "device (28)",
        ),
        "cause",
        "/dev/shm is full",
    ),
    "ECC": (f"{_WATCHDOG}CUDA error: uncorrectable ECC error encountered", "cause", "the GPU's memory is damaged"),
    "NVLink": (
        "AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution",
        "cause",
        "an NVLink failed",
    ),
    "Xid": (
        _of("unhandled system error", _SYSTEM, "NVML: GPU is lost; Xid 79, GPU has fallen off the bus"),
        "cause",
        "the GPU failed",
    ),
    "fabric manager": (
        "RuntimeError: CUDA error: system not yet initialized",
        "cause",
        "the NVSwitches are not set up",
    ),
    "illegal memory access": (
        f"{_WATCHDOG}CUDA error: an illegal memory access was encountered",
        "cause",
        "a kernel failed, of the body or of a library",
    ),
    "exclusive mode": (
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "cause",
        "the GPU accepts no further process",
    ),
    "no kernels": (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "cause",
        "this torch has no kernels for this GPU",
    ),
    "driver": (
        _of("unhandled cuda error", _CUDA, "Cuda failure 35 'CUDA driver version is insufficient'"),
        "cause",
        "the driver does not fit this torch",
    ),
    "a torch for the CPU": (
        "AssertionError: Torch not compiled with CUDA enabled",
        "cause",
        "this torch is built for the CPU only",
    ),
    "fork": (
        (
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
            "use the 'spawn' start method"
        ),
        "cause",
        "CUDA was in use before the rank was forked",
    ),
    "two ranks on one GPU": (
        _of("invalid usage", _USAGE, "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"),
        "cause",
        "two ranks use one GPU",
    ),
    "versions": (
        _of("invalid usage", _USAGE, "Mismatched NCCL version detected : rank 0 version 22705 rank 1 version 22602"),
        "cause",
        "the ranks have different NCCL versions",
    ),
    "no interface": (
        _of("internal error", "ncclInternalError: Internal check failed.\n", "Bootstrap : no socket interface found"),
        "cause",
        "NCCL found no network interface",
    ),
    "NVLS": (
        _of(
            "unhandled cuda error",
            _CUDA,
            "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation "
            "cannot be performed in the present state'.",
        ),
        "cause",
        "NVLink SHARP does not work here",
    ),
    "open files": (
        _of("unhandled system error", _SYSTEM, "Call to socket failed : Too many open files"),
        "cause",
        "too many open files",
    ),
    "locked memory": (
        _of("unhandled system error", _SYSTEM, "Call to ibv_reg_mr failed with error Cannot allocate memory"),
        "cause",
        "memory could not be registered, or there is none left",
    ),
    "a watchdog that is stuck": (
        (
            "[PG ID 0 PG GUID 0 Rank 0] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress "
            "in monitoring enqueued collectives."
        ),
        "cause",
        "a call of CUDA or NCCL did not come back, or a thread holds Python's lock",
    ),
    "ncclUnhandledCudaError": (
        _of("unhandled cuda error", _CUDA, "Cuda failure 999 'unknown error'"),
        "cause",
        "a call of CUDA failed inside NCCL",
    ),
    "ncclSystemError": (
        _of("unhandled system error", _SYSTEM, "Call to mmap failed"),
        "cause",
        "a call of the system failed inside NCCL",
    ),
    "ncclInternalError": (
        (
            f"{_NCCL}internal error - please report this issue to the NCCL developers, NCCL version 2.27.5\n"
            "ncclInternalError: Internal check failed."
        ),
        "cause",
        "a check inside NCCL failed",
    ),
    "ncclInvalidArgument": (
        (
            f"{_NCCL}invalid argument (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.5\n"
            "ncclInvalidArgument: Invalid value for an argument."
        ),
        "cause",
        "NCCL was given a wrong argument",
    ),
    "ncclInvalidUsage": (
        f"{_NCCL}invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.5\n{_USAGE}",
        "cause",
        "NCCL was used in an invalid way",
    ),
    "another CUDA error": ("RuntimeError: CUDA error: unknown error", "cause", "a call of CUDA failed"),
    "a device that is not there": (
        "AcceleratorError: CUDA error: invalid device ordinal\nGPU device may be out of range",
        "cause",
        "the rank sees fewer GPUs than it has to choose from",
    ),
    "cuBLAS without memory": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cause",
        "the GPU's memory is full",
    ),
    "cuBLAS that cannot begin": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cause",
        "cuBLAS or cuDNN could not begin on the GPU",
    ),
    "cuDNN of two versions": (
        "RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
        "cause",
        "a CUDA library refused a call, or its kernel failed",
    ),
    "a driver that is too old for what was compiled": (
        "RuntimeError: CUDA driver error: the provided PTX was compiled with an unsupported toolchain.",
        "cause",
        "a call of the CUDA driver failed",
    ),
    "gloo on a host's own address": (
        "RuntimeError: Gloo connectFullMesh failed with SO_ERROR: Connection refused, remote=[127.0.1.1]:40123",
        "cause",
        "gloo uses an address that leads each host to itself",
    ),
    "gloo to a peer that is gone": (
        "RuntimeError: Gloo connectFullMesh failed with Connection refused, remote=[127.0.0.1]:40123",
        "victim",
        "",
    ),
}
"""Most are copied from reports of users, the others made of the words in the sources of NCCL 2.27 and torch 2.13."""


def watchdog_log(why: str, *, frames: int = 24) -> str:
    """A rank's log as the watchdog leaves it: the reason (a text, or LATE) stands above so many lines of C++ frames."""
    head = f"[rank0]:[E1121 10:00:00.000000001 ProcessGroupNCCL.cpp:697] {why}\n" if why == LATE else ""
    text = f"{_WATCHDOG}{why}\nException raised from checkTimeout at /pytorch/torch/csrc/ProcessGroupNCCL.cpp:686\n"
    stack = "".join(
        f"frame #{i}: c10d::ProcessGroupNCCL::Watchdog::runLoop() + 0x{i:x} (0x7f in libtorch_cuda.so)\n"
        for i in range(frames)
    )
    end = "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    first = f"[rank0]:[E1121 10:01:00.000000001 ProcessGroupNCCL.cpp:2057] {text}{stack}\n"
    return f"{head}{first}{end}  what():  {text}{stack}"
