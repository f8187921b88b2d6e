"""A simulated accelerator: code that would fail on a GPU fails on it.

`install()` registers a PyTorch device `sim` in this process, as its only accelerator. It is a backend for
the dispatch key PrivateUse1, written in Python. Memory of the device is memory of the host, and an operator
runs on aliases of its tensors on the CPU. For PyTorch and all libraries, they are ordinary tensors of another
device.

It behaves like a GPU in these respects:

* An operator with tensors of both devices is an error, except for scalars (tensors without dimensions) in
  pointwise operators, and for indices on the host. So is `.numpy()` on a tensor of the device.
* The device has a random state of its own. A generator of the CPU does not work there.
* Autocast of other device types has no effect. That of the device chooses the number format by operator.
* Pinning a batch copies it. It fails if elements of a tensor share memory, as those of an expanded tensor do.
* `record_synchronizations` lists what would wait for all kernels before it: reading values or their number,
  and copies to or from the device, except for those to it with `non_blocking=True`.

Kernels do not run in the background, and only one device exists. A registered device remains until the
process ends. The tests that need it therefore run in one process of their own:
`tests/test_simulated_accelerator.py` starts `tests/on_accelerator.py`. As a plugin, this module runs any
other file of tests on the device: `PYTHONPATH=tests python -m pytest -n0 -p simulated_accelerator FILE`.
"""

import contextlib
import ctypes
import os
import traceback
from functools import cache

import torch
from torch.utils import backend_registration
from transformers import training_args

NAME = "sim"
READING_OPERATORS = {
    "_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "_unique", "_unique2",
    "unique_dim", "unique_consecutive", "unique_dim_consecutive",
}  # fmt: skip
INDEXING_OPERATORS = {
    "index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index",
    "_unsafe_index_put",
}

# ---- memory

_dl_tensor = ctypes.pythonapi.PyCapsule_GetPointer
_dl_tensor.restype, _dl_tensor.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
DL_CPU, DL_EXTENSION = 1, 12  # DLDeviceType of the CPU and of PrivateUse1
DEVICE_OFFSET = ctypes.sizeof(ctypes.c_void_p)  # of the device in DLTensor: after the pointer to the data


def _alias(tensor, device_type):
    """Return a tensor with the same memory on another device type. It keeps the memory alive."""
    capsule = torch._C._to_dlpack(tensor)
    ctypes.c_int32.from_address(_dl_tensor(capsule, b"dltensor") + DEVICE_OFFSET).value = device_type
    return torch._C._from_dlpack(capsule)


def is_on_device(value):
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _to_host(value):
    """Replace tensors, devices and lists of them in an argument."""
    if isinstance(value, torch.Tensor):
        return _alias(value, DL_CPU) if value.device.type == NAME else value
    if isinstance(value, list | tuple):
        return type(value)(map(_to_host, value))
    if isinstance(value, torch.device) and value.type == NAME:
        return torch.device("cpu")
    return value


def _to_device(value):
    if isinstance(value, torch.Tensor):
        return _alias(value, DL_EXTENSION) if value.device.type == "cpu" else value
    if isinstance(value, list | tuple):
        return type(value)(map(_to_device, value))
    return value


# ---- operators

_host_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_excluded_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
for _key in (
    "AutogradFunctionality",
    "AutogradOther",
    "AutogradCPU",
    "ADInplaceOrView",
    "AutocastPrivateUse1",
):
    _excluded_keys = _excluded_keys.add(getattr(torch._C.DispatchKey, _key))


@cache
def _describe(operator):
    """Return what `_run` needs to know about an operator."""
    schema = operator._schema
    written = [
        (index, argument.name, argument.kwarg_only)
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    has_generator = any(argument.name == "generator" for argument in schema.arguments)
    takes_numbers = torch._C._should_allow_numbers_as_tensors(operator.overloadpacket.__name__)
    tensors = [
        index
        for index, argument in enumerate(schema.arguments)
        if isinstance(argument.type, torch.TensorType)
    ]
    return (
        operator.overloadpacket.__name__,
        written,
        has_generator,
        torch.Tag.nondeterministic_seeded in operator.tags,
        torch.Tag.pointwise in operator.tags,
        [] if takes_numbers else tensors,
    )


def _run(operator, *args, **kwargs):
    """Run an operator whose arguments or result are on the device."""
    name, written, has_generator, is_random, is_pointwise, tensor_positions = _describe(operator)
    _check_devices(operator, name, is_pointwise, args, kwargs)
    if _synchronizations is not None and _reads_values(name, args, kwargs):
        _record(name)
    for index in tensor_positions:
        if index < len(args) and isinstance(args[index], int | float):  # a scalar of the caller
            like = args[0] if isinstance(args[0], torch.Tensor) else args[1]
            is_exact = like.is_floating_point() or isinstance(args[index], int)
            number = torch.tensor(args[index], dtype=like.dtype if is_exact else None)
            args = (*args[:index], number, *args[index + 1 :])
    host_args, host_kwargs = _to_host(args), {key: _to_host(value) for key, value in kwargs.items()}
    for _, key, is_keyword in written:
        # An empty result gets its size from the operator, which cannot resize an alias.
        if is_keyword and not kwargs[key].numel():
            host_kwargs[key] = torch.empty(0, dtype=kwargs[key].dtype)
    with torch._C._ExcludeDispatchKeyGuard(_excluded_keys):
        if is_random:
            result = _run_randomly(operator, has_generator, host_args, host_kwargs)
        else:
            result = operator(*host_args, **host_kwargs)
    if not written:
        return _to_device(result)
    originals = [kwargs[key] if is_keyword else args[index] for index, key, is_keyword in written]
    for _, key, is_keyword in written:
        if is_keyword and host_kwargs[key].numel() != kwargs[key].numel():
            _copy(_resize(kwargs[key], host_kwargs[key].size()), _to_device(host_kwargs[key]))
    returns = operator._schema.returns
    if not returns:
        return None
    if all(each.alias_info is not None for each in returns):
        return originals[0] if len(returns) == 1 else tuple(originals)
    return _to_device(result)


def _check_devices(operator, name, is_pointwise, args, kwargs):
    """Raise the error of a GPU if an operator gets tensors of the host."""
    tensors = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += [each for each in value if isinstance(each, torch.Tensor)]
        elif isinstance(value, torch.Generator) and value is not device_module.generator:
            raise RuntimeError(f"{operator}: expected a generator of {NAME}, found one of {value.device}")
    is_indexing = name in INDEXING_OPERATORS
    if is_indexing and is_on_device(args[0]):
        tensors = [args[0], *(value for value in args[2:] if isinstance(value, torch.Tensor))]
    allows_scalars = is_pointwise or is_indexing or name in ("masked_fill", "masked_fill_", "fill_")
    devices = {
        tensor.device for tensor in tensors if tensor.dim() or not allows_scalars or is_on_device(tensor)
    }
    if len(devices) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(map(str, devices)))}! ({operator})"
        )


def _run_randomly(operator, has_generator, args, kwargs):
    """Run an operator with the random state of the device."""
    if has_generator:
        return operator(*args, **kwargs | {"generator": device_module.generator})
    host_state = torch.get_rng_state()
    torch.set_rng_state(device_module.get_rng_state())
    try:
        return operator(*args, **kwargs)
    finally:
        device_module.set_rng_state(torch.get_rng_state())
        torch.set_rng_state(host_state)


def _run_on_metadata(operator):
    """Return a kernel that creates a view, or changes shape and storage: the CPU's kernel reads no memory."""

    def run(*args, **kwargs):
        return operator.redispatch(_host_keys, *args, **kwargs)

    return run


def _resize(tensor, size, memory_format=None):
    numel = torch.Size(size).numel()
    if tensor.storage_offset() + numel > tensor.untyped_storage().nbytes() // tensor.element_size():
        new = torch.empty(tensor.storage_offset() + numel, dtype=tensor.dtype, device=tensor.device)
        old = torch.ops.aten.as_strided(tensor, [tensor.numel()], [1], 0) if tensor.numel() else None
        if old is not None:
            _copy(new[: old.numel()], old)
        tensor.set_(new.untyped_storage(), tensor.storage_offset(), size)
        return tensor
    strides = torch.empty(
        size, device="meta", memory_format=memory_format or torch.contiguous_format
    ).stride()
    return tensor.set_(tensor.untyped_storage(), tensor.storage_offset(), size, strides)


def _copy(target, source, non_blocking=False):
    if is_on_device(target) != is_on_device(source):
        if not is_on_device(target):
            _record("copy to the host")
        elif not non_blocking:
            _record("copy to the device")
    with torch._C._ExcludeDispatchKeyGuard(_excluded_keys):
        _to_host(target).copy_(_to_host(source))
    return target


def _copy_from(source, target, non_blocking=False):
    return _copy(target, source, non_blocking)


def _run_lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    """Return the states of an LSTM cell and its gates; the CPU has no such operator."""
    gates = input_gates + hidden_gates
    if input_bias is not None:
        gates = gates + input_bias + hidden_bias
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _differentiate_lstm_cell(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    """Return the gradients of the gates, of the previous state and of the biases."""
    i, f, g, o = workspace.chunk(4, 1)
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    # dc = dcy + dhy * o * (1 - tanh(cy)^2); ds = s * (1 - s) for a sigmoid s, and dt = 1 - t^2 for a tanh t
    tanh_cy = cy.tanh()
    dc = grad_hy * o * (1 - tanh_cy * tanh_cy)
    dc = dc if grad_cy is None else dc + grad_cy
    di, df = dc * g * i * (1 - i), dc * cx * f * (1 - f)
    dg, do = dc * i * (1 - g * g), grad_hy * tanh_cy * o * (1 - o)
    grad_gates = torch.cat([di, df, dg, do], 1)
    return grad_gates, dc * f, grad_gates.sum(0) if has_bias else None


def _pin(tensor, device=None):
    """Return a copy with the strides of the tensor, as `Tensor.pin_memory` does with a GPU."""
    if is_on_device(tensor):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def _get_location(storage):
    return f"{NAME}:0" if storage.device.type == NAME else None


def _load_storage(storage, location):
    """Copy a storage from a file to the device. PyTorch's own code needs an allocator in C++."""
    if not location.startswith(NAME):
        return None
    return torch.empty(0, dtype=torch.uint8).set_(storage).to(location).untyped_storage()


# ---- synchronizations

_synchronizations = None


@contextlib.contextmanager
def record_synchronizations():
    """Yield a list of what waits for the device, each with the line of the code that does so."""
    global _synchronizations
    before, _synchronizations = _synchronizations, []
    try:
        yield _synchronizations
    finally:
        _synchronizations = before


def _reads_values(name, args, kwargs):
    if name in INDEXING_OPERATORS:
        return any(
            index is not None and (index.dtype in (torch.bool, torch.uint8) or not is_on_device(index))
            for index in args[1]
        )
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return name in READING_OPERATORS


def _record(reason):
    if _synchronizations is not None:
        frames = [each for each in traceback.extract_stack() if "/torch/" not in each.filename][:-1]
        frames = [each for each in frames if each.filename != __file__]
        _synchronizations.append(f"{reason} at {frames[-1].filename}:{frames[-1].lineno}")


# ---- autocast

LOWER_PRECISION = [
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "linear", "matmul", "mm", "mv",
    "scaled_dot_product_attention", "conv1d", "conv2d", "prelu",
]  # fmt: skip
FP32 = [
    "acos", "asin", "binary_cross_entropy_with_logits", "cosh", "cosine_similarity", "cumprod", "cumsum",
    "dist", "erfinv", "exp", "expm1", "hinge_embedding_loss", "kl_div", "l1_loss", "layer_norm", "log",
    "log10", "log1p", "log2", "log_softmax.int", "logsumexp", "mse_loss", "nll_loss", "norm.Scalar",
    "norm.ScalarOpt_dim", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "prod", "reciprocal",
    "renorm", "rsqrt", "sinh", "smooth_l1_loss", "softmax.int", "softplus", "sum", "sum.dim_IntList", "tan",
]  # fmt: skip
WIDEST = ["addcdiv", "addcmul", "atan2", "bilinear", "cat", "cross", "dot", "index_put", "stack", "tensordot"]
_autocast_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _cast(value, dtype):
    if is_on_device(value) and value.dtype in (torch.float32, torch.bfloat16, torch.float16):
        return value.to(dtype)
    return type(value)(_cast(each, dtype) for each in value) if isinstance(value, list | tuple) else value


def _list_dtypes(value):
    if isinstance(value, list | tuple):
        return [dtype for each in value for dtype in _list_dtypes(each)]
    return [value.dtype] if is_on_device(value) and value.is_floating_point() else []


def _autocast(operator, choose_dtype):
    """Return a kernel that casts the tensors of the device to a number format first."""

    def run(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(_autocast_keys):
            dtype = choose_dtype(args)
            if dtype is None:
                return operator(*args, **kwargs)
            return operator(
                *_cast(args, dtype), **{key: _cast(value, dtype) for key, value in kwargs.items()}
            )

    return run


def _get_lower_precision(args):
    return torch.get_autocast_dtype(NAME)


def _get_fp32(args):
    return torch.float32


def _get_widest(args):
    return torch.float32 if torch.float32 in _list_dtypes(args) else None


# ---- registration


class DeviceModule(backend_registration._DummyBackendModule):
    """`torch.sim`: the functions that PyTorch and libraries expect of a device."""

    def __init__(self):
        self.generator = torch.Generator()  # belongs to the CPU, but only operators of the device use it
        self.generator.manual_seed(0)

    def manual_seed_all(self, seed):
        self.generator.manual_seed(seed)

    manual_seed = manual_seed_all

    def get_rng_state(self, device=None):
        return self.generator.get_state()

    def set_rng_state(self, state, device=None):
        self.generator.set_state(state)

    def get_rng_state_all(self):
        return [self.get_rng_state()]

    def set_rng_state_all(self, states):
        self.set_rng_state(states[0])

    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self):
        return True

    def set_device(self, device):
        pass

    def device(self, device):
        return contextlib.nullcontext()  # there is one device

    def synchronize(self, device=None):
        _record("synchronize")

    def empty_cache(self):
        pass


device_module = DeviceModule()
_libraries = []  # their kernels live as long as they do


def install():
    """Register the device, for the rest of this process."""
    if _libraries:
        return
    os.environ["ACCELERATE_TORCH_DEVICE"] = f"{NAME}:0"
    training_args.is_torch_bf16_gpu_available = lambda: True
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=device_module)
    torch.Tensor.pin_memory, torch.accelerator.synchronize = _pin, device_module.synchronize
    torch.serialization.register_package(0, _get_location, _load_storage)
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(_run, "PrivateUse1")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    _libraries.extend([fallback, aten])
    for name in (
        "as_strided", "view", "unfold", "_reshape_alias", "view_as_real", "view_as_complex",
        "set_.source_Storage_storage_offset", "set_.source_Tensor", "set_.source_Storage", "set_",
    ):  # fmt: skip
        aten.impl(name, _run_on_metadata(_get_operator(name)), "PrivateUse1")
    kernels = {
        "resize_": _resize, "copy_": _copy, "_copy_from": _copy_from, "_thnn_fused_lstm_cell": _run_lstm_cell,
        "_thnn_fused_lstm_cell_backward_impl": _differentiate_lstm_cell,
    }  # fmt: skip
    for name, kernel in kernels.items():
        aten.impl(name, kernel, "PrivateUse1")
    for names, choose_dtype in (
        (LOWER_PRECISION, _get_lower_precision), (FP32, _get_fp32), (WIDEST, _get_widest)
    ):  # fmt: skip
        for name in names:
            aten.impl(name, _autocast(_get_operator(name), choose_dtype), "AutocastPrivateUse1")


def _get_operator(name):
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def pytest_configure():
    """Install the device at the start of a test run with `-p simulated_accelerator`."""
    install()
