"""Triton kernels compiled for GPUs that are not there: what their main loops consist of, and a model of
their cost.

Kernels are compiled from the arguments of real launches, so that the checks see what users run.
"""

import re
import subprocess
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from scale_invariant_attention.attention import (
    Visibility,
    _triton_forward,
    _triton_key_gradients,
    _triton_launch,
    _triton_query_gradients,
)
from scale_invariant_attention.attention._triton_plan import Device, Plan
from scale_invariant_attention.attention.contract import checked_call

KERNEL_MODULES = (_triton_forward, _triton_key_gradients, _triton_query_gradients)
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TARGETS = {
    "sm_75": (GPUTarget("cuda", 75, 32), Device("cuda", 75, 40)),
    "sm_80": (GPUTarget("cuda", 80, 32), Device("cuda", 80, 108)),
    "sm_90": (GPUTarget("cuda", 90, 32), Device("cuda", 90, 132)),
    "sm_100": (GPUTarget("cuda", 100, 32), Device("cuda", 100, 148)),
    "gfx942": (GPUTarget("hip", "gfx942", 64), Device("hip", 0, 304)),
}
# Shared memory of a block, in bytes. Consumer cards share tiles with sm_80, and have 99 KiB.
ALLOWED = {"sm_80": 99 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}


@dataclass(frozen=True)
class Launch:
    """A kernel and the arguments of one launch."""

    kernel: object
    arguments: dict[str, object]

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__.removesuffix("_kernel")


@contextmanager
def recorded_launches(target: str):
    """A list of all launches, which do not run: as if the device were the target."""
    recorded = []

    class Recorder(Plan):
        def __init__(self, call, **settings):
            super().__init__(call, TARGETS[target][1], **settings)

        def launch(self, kernel, grid, **arguments):
            recorded.append(Launch(kernel, arguments))

    original = _triton_launch.Plan
    _triton_launch.Plan = Recorder
    try:
        yield recorded
    finally:
        _triton_launch.Plan = original


def launches(
    target: str,
    size: int,
    *,
    tau_grads=False,
    tables=False,
    queries=512,
    keys=512,
    tau=1.0,
    scale=None,
    dtype=torch.bfloat16,
    device="cpu",
    positions=False,
    documents=False,
    key_mask=False,
    key_bias=False,
    **settings,
) -> list[Launch]:
    """All launches of forward and backward of a call, recorded and not run."""
    query = torch.zeros(2, 8, queries, size, dtype=dtype, device=device)
    key = torch.zeros(2, 2, keys, size, dtype=dtype, device=device)
    affine, tau = None, torch.full((8,), tau, device=device)
    if tables:
        from scale_invariant_attention import DistanceAffine

        ones = torch.ones(8, max(queries, keys), device=device)
        affine, tau = DistanceAffine(ones, ones - 1), None
    rows = torch.arange(keys, device=device)
    if positions:
        settings |= {"key_positions": rows}
    if documents:
        settings |= {"key_documents": rows // 100}
    if key_mask:
        settings |= {"key_mask": (rows > 5).expand(2, keys)}
    call = checked_call(
        query,
        key,
        key,
        affine=affine,
        tau=tau,
        visibility=Visibility(**settings),
        scale=scale,
        key_bias=torch.zeros(2, 8, keys, device=device) if key_bias else None,
    )
    with recorded_launches(target) as recorded:
        out, lse = _triton_launch.forward(call)
        _triton_launch.backward(
            call, out, lse, torch.zeros_like(out), torch.zeros_like(lse), tau_grads or tables
        )
    return recorded


@triton.jit
def _no_affine(
    index,
    constant,
    line,
    length,
    inverse_tau,
    unit,
    AFFINE: tl.constexpr,
    CAUSAL: tl.constexpr,
    PTX: tl.constexpr,
):
    return 1.0, 0.0


@triton.jit
def _plain_logits(scores, gain, bias, key_bias, KEY_BIAS: tl.constexpr):
    return scores


@contextmanager
def without_transform():
    """Compile the same kernels without gain and bias, as the yardstick."""
    changed = [
        (module, name, getattr(module, name), plain)
        for module in KERNEL_MODULES
        for name, plain in (("affine", _no_affine), ("logits", _plain_logits))
    ]
    for module, name, _, plain in changed:
        setattr(module, name, plain)
    _forget_hashes()
    try:
        yield
    finally:
        for module, name, original, _ in changed:
            setattr(module, name, original)
        _forget_hashes()


def _forget_hashes() -> None:
    for module in KERNEL_MODULES:
        for function in vars(module).values():
            if isinstance(function, triton.JITFunction):
                function.hash = None
                function.used_global_vals = {}


@dataclass
class Compiled:
    """A compiled kernel: its resources, and the innermost loops with matrix products."""

    registers: int = 0
    stack: int = 0
    shared: int = 0
    loops: list[Counter] = field(default_factory=list)

    @cached_property
    def main_loop(self) -> Counter:
        """The shortest loop: its tiles need no mask."""
        return min(self.loops, key=lambda loop: loop.total())


def compiled(launch: Launch, target: str) -> Compiled:
    """Compile a launch for a target, and take the binary apart."""
    binary = binary_of(launch, target)
    return _amd(binary) if TARGETS[target][0].backend == "hip" else _nvidia(binary)


def binary_of(launch: Launch, target: str):
    """Compile a launch for a target."""
    kernel, arguments = launch.kernel, launch.arguments
    options = {n: arguments[n] for n in ("num_warps", "num_stages") if n in arguments}
    signature, constants, aligned = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[parameter.name] = "constexpr"
            constants[(index,)] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = POINTERS[value.dtype]
            aligned[(index,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=TARGETS[target][0], options=options)


def _amd(binary) -> Compiled:
    text = binary.asm["amdgcn"]

    def number(name: str) -> int:
        return int(re.search(rf"\.{name}:\s+(\d+)", text)[1])

    # Memory per thread. Spilled scalar registers need none while lanes of vector registers hold them.
    memory = number("private_segment_fixed_size")
    return Compiled(number("vgpr_count"), memory, binary.metadata.shared)


def _nvidia(binary) -> Compiled:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        tool = [str(TOOLS / "cuobjdump")]
        usage = subprocess.run(
            [*tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
        sass = subprocess.run(
            [*tool, "-sass", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    return Compiled(int(found[1]), int(found[2]), binary.metadata.shared, loops_of(sass))


INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)\s*(.*?);")
CLASSES = {
    "tensor": r"HMMA|HGMMA|UTC\w*MMA|IMMA|QGMMA",
    "special": r"MUFU",
    "convert": r"I2F(?!P)",
    "float": r"FFMA|FMUL|FADD|HFMA|HADD|HMUL",
    "integer": r"FMNMX|FSETP|FSEL|ISETP|SEL|I2FP|F2F|IADD|IMAD|LOP|SHF\.|LEA|VIADD|VIMNMX|IMNMX"
    r"|PRMT|IABS",
    "global load": r"LDG(?!STS)",
    "matrix load": r"LDSM",
    "copy": r"LDGSTS|UTMALDG",
    "shared": r"LDS|STS|SHFL",
    "local": r"LDL|STL",
}


# Arithmetic instructions from which on a loop without tensor cores is a product of float32 tiles.
MULTIPLIED = 500


def loops_of(sass: str) -> list[Counter]:
    """Instructions by class in every innermost loop with matrix products."""
    instructions = []
    for line in sass.splitlines():
        found = INSTRUCTION.match(line)
        if found:
            instructions.append((int(found[1], 16), found[2], found[3]))
    spans = []
    for address, name, rest in instructions:
        target = re.search(r"0x([0-9a-f]+)", rest) if name.startswith("BRA") else None
        if target and int(target[1], 16) < address:
            spans.append((int(target[1], 16), address))
    inner = [
        span
        for span in spans
        if not any(o != span and span[0] <= o[0] and o[1] <= span[1] for o in spans)
    ]
    counts = []
    for begin, end in inner:
        body = Counter(_class(name) for address, name, _ in instructions if begin <= address <= end)
        if body["tensor"] or body["float"] >= MULTIPLIED:
            counts.append(body)
    return counts


def _class(name: str) -> str:
    return next((kind for kind, pattern in CLASSES.items() if re.match(pattern, name)), "other")


# Per processor and clock: products of bfloat16; and clocks per instruction of a warp on a quarter of it.
RATES = {
    "sm_80": {"products": 1024, "float": 2, "integer": 2, "special": 8, "convert": 8},
    "sm_90": {"products": 2048, "float": 1, "integer": 2, "special": 8, "convert": 2},
}
# Wavefronts of a warp instruction; the processor moves one per clock.
WAVEFRONTS = {"global load": 2, "matrix load": 4, "copy": 4, "shared": 1, "local": 1}


def model(loop: Counter, target: str, products: int, warps: int) -> tuple[float, float]:
    """Clocks of one pass through a main loop: tensor cores and the rest overlapping, or in turn.

    `products` are the multiplications of the pass.
    """
    rates, quarter = RATES[target], warps / 4
    tensor = products / rates["products"]
    units = {
        "special": loop["special"] * rates["special"]
        + (loop["convert"] * rates["convert"] if rates["convert"] == 8 else 0),
        "float": loop["float"] * rates["float"],
        "integer": loop["integer"] * rates["integer"],
        "memory": sum(loop[kind] * count for kind, count in WAVEFRONTS.items()) * 4,
        "issue": loop.total(),
    }
    rest = max(units.values()) * quarter
    return max(tensor, rest), tensor + rest


# Matrix products of a tile.
PRODUCTS = {"forward": 2, "key_gradients": 4, "query_gradients": 3}


def tile_products(launch: Launch) -> int:
    """Multiplications of one pass through the main loop of a launch."""
    a = launch.arguments
    return PRODUCTS[launch.name] * a["BLOCK_M"] * a["BLOCK_N"] * a["D"]
