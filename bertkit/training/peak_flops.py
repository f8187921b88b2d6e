"""Find the peak rate of floating-point operations of a device, in data sheets or by measuring it once."""

import functools
import hashlib
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from bertkit.utils.cache import get_or_create
from bertkit.utils.compat import get_cpu_capabilities

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Peak rates in TFLOP/s of products of dense matrices, accumulated in fp32. Many data sheets print the rates
# for sparse matrices, which are twice as high.
# Sources: the data sheets of NVIDIA A10, A100, H100, H200, L4, L40S, T4 and V100, and of AMD Instinct MI300X;
# for GeForce, the white papers of the architectures "Ampere GA102" and "Ada".
H100_SXM = {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}
PEAK_TFLOPS = {  # pattern of the device name -> rates by precision
    r"H100 80GB HBM3": H100_SXM,
    r"H100 PCIe": {"bf16": 756.0, "fp16": 756.0, "tf32": 378.0, "fp32": 51.2},
    r"H100 NVL": {"bf16": 835.5, "fp16": 835.5, "tf32": 417.5, "fp32": 60.0},
    r"H200 NVL": {"bf16": 835.5, "fp16": 835.5, "tf32": 417.5, "fp32": 60.0},
    r"H200": H100_SXM,
    r"A100": {"bf16": 312.0, "fp16": 312.0, "tf32": 156.0, "fp32": 19.5},
    r"A10": {"bf16": 125.0, "fp16": 125.0, "tf32": 62.5, "fp32": 31.2},
    r"L40S": {"bf16": 362.1, "fp16": 362.1, "tf32": 183.0, "fp32": 91.6},
    r"L4": {"bf16": 121.0, "fp16": 121.0, "tf32": 60.0, "fp32": 30.3},
    r"T4": {"fp16": 65.0, "fp32": 8.1},
    r"V100S-PCIE": {"fp16": 130.0, "fp32": 16.4},
    r"V100-SXM2": {"fp16": 125.0, "fp32": 15.7},
    r"V100-PCIE": {"fp16": 112.0, "fp32": 14.0},
    r"RTX 3090": {"bf16": 71.0, "fp16": 71.0, "tf32": 35.6, "fp32": 35.6},
    r"RTX 4090": {"bf16": 165.2, "fp16": 165.2, "tf32": 82.6, "fp32": 82.6},
    r"MI300X": {"bf16": 1307.4, "fp16": 1307.4, "tf32": 653.7, "fp32": 163.4},
}
# A name is followed by the size of the memory or the form factor. Variants with other rates must not match.
NAME_PATTERN = r"\b{}(?=$|[ -](?!Ti\b|D\b|Laptop\b))"
# Sizes of the measured products: the feed-forward layer of a small encoder, or a size that fills a GPU.
CPU_SHAPE, ACCELERATOR_SHAPE = (4096, 384, 1536), (4096, 4096, 4096)
NUM_TIMINGS, MAX_SECONDS = 10, 0.2
RATE_FILE = "rate.json"


@dataclass(frozen=True)
class PeakFlops:
    """Peak rate of one device in operations per second, and where it is from."""

    value: float
    source: str


def find_peak_flops(device: torch.device, precision: str) -> PeakFlops:
    """Return the rate in the data sheet of the device, or else the measured rate of matrix products.

    Args:
        device: Device that the model is trained on.
        precision: "fp32", "bf16" or "fp16".
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        number_format = "tf32" if precision == "fp32" and _uses_tf32() else precision
        if rate := find_data_sheet_rate(name, number_format):
            return PeakFlops(rate, f"data sheet of {name}, {number_format}")
    return PeakFlops(load_or_measure_rate(device, precision), f"measured, {precision}")


def _uses_tf32() -> bool:
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def find_data_sheet_rate(device_name: str, number_format: str) -> float | None:
    """Return the operations per second of a GPU, or None if the GPU or its number format is not listed.

    A part of a GPU (MIG) has only a part of its rate.
    """
    if " MIG " in device_name:
        return None
    for pattern, rates in PEAK_TFLOPS.items():
        if re.search(NAME_PATTERN.format(pattern), device_name):
            return rates[number_format] * 1e12 if number_format in rates else None
    return None


def load_or_measure_rate(device: torch.device, precision: str) -> float:
    """Return the operations per second of a matrix product, measured once for this machine and cached.

    A machine that is busy during the measurement gets a rate that is too low.
    """
    if device.type == "cpu":
        hardware = str(get_cpu_capabilities().get("cpu_name", "cpu"))
    else:
        hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return _load_or_measure_rate(device, precision, hardware, torch.get_num_threads())


@functools.cache
def _load_or_measure_rate(device: torch.device, precision: str, hardware: str, threads: int) -> float:
    """Return the rate from the cache, whose key contains everything that the rate depends on."""
    parts = [hardware, threads, torch.__version__, precision]

    def write(folder: Path) -> None:
        rate = measure_rate(device, DTYPES[precision])
        (folder / RATE_FILE).write_text(json.dumps({"key": parts, "flops_per_second": rate}), "utf-8")

    key = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
    folder = get_or_create("peak-flops", key, write)
    if folder is None:  # the cache cannot be written
        return measure_rate(device, DTYPES[precision])
    return float(json.loads((folder / RATE_FILE).read_text("utf-8"))["flops_per_second"])


def measure_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of the fastest of several matrix products."""
    rows, inner, columns = CPU_SHAPE if device.type == "cpu" else ACCELERATOR_SHAPE
    left = torch.randn(rows, inner, device=device).to(dtype)
    right = torch.randn(inner, columns, device=device).to(dtype)
    seconds: list[float] = []
    out = torch.mm(left, right)  # warm-up
    while len(seconds) < NUM_TIMINGS and sum(seconds) < MAX_SECONDS:
        seconds.append(_time_product(left, right, out))
    return 2 * rows * inner * columns / min(seconds)


def _time_product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> float:
    started = time.perf_counter()
    torch.mm(left, right, out=out)
    if left.device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - started
