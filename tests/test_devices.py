"""`--device`: the choice of the device, the check of MPS, and what Trainer gets."""

import json
from types import SimpleNamespace

import pytest
import torch
import yaml
from transformers import TrainingArguments

import bertkit
from bertkit.errors import UserError
from bertkit.training import arguments
from bertkit.utils import devices

CPU, MPS = torch.device("cpu"), torch.device("mps")


@pytest.fixture(autouse=True)
def _forget_devices():
    """Forget the devices that a test has found."""
    yield
    devices._find_device.cache_clear()
    devices.find_errors.cache_clear()
    devices.request_device("auto")


@pytest.fixture
def mac(monkeypatch):
    """Make PyTorch report an MPS device, and return the list of its wrong computations."""
    errors = []
    devices._find_device.cache_clear()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: MPS)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(devices, "find_wrong_computations", lambda _: errors)
    return errors


@pytest.fixture
def gpus(monkeypatch):
    """Make PyTorch report two GPUs."""
    devices._find_device.cache_clear()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)


def test_mps_is_chosen_if_it_computes_correctly(mac):
    assert (devices.get_device(), devices.describe_errors()) == (MPS, None)


def test_mps_with_wrong_results_is_used_only_on_request(mac):
    mac.append("training an LSTM")
    assert (devices.get_device(), devices.has_accelerator()) == (CPU, False)
    devices.request_device("mps")
    assert devices.get_device() == MPS
    assert "computes wrong results on this machine (training an LSTM)" in devices.describe_errors()


def test_trainer_does_not_choose_mps_by_itself(mac, tmp_path, monkeypatch):
    from bertkit.tasks.text.config import ClassifyConfig

    mac.append("training an LSTM")
    monkeypatch.setattr("transformers.training_args.is_torch_mps_available", lambda: True, raising=False)
    built = arguments.build_training_arguments(ClassifyConfig(), tmp_path / "checkpoints", "fp32")
    assert (built.use_cpu, built.device, built.dataloader_pin_memory) == (True, CPU, False)


def test_mps_trains_in_fp32_and_refuses_other_precisions(mac, monkeypatch):
    from bertkit.tasks.text.config import ClassifyConfig

    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *_: False)
    assert arguments.choose_precision(ClassifyConfig())[0] == "fp32"
    for setting in ("fp16", "bf16"):
        with pytest.raises(UserError, match=f"--{setting}: needs "):
            arguments.check_precision(ClassifyConfig(**{setting: True}))


@pytest.mark.slow
def test_the_check_passes_on_the_cpu():
    assert devices.find_wrong_computations(CPU) == []


@pytest.mark.parametrize("name", ["attention with padding", "causal attention in half precision"])
def test_the_check_finds_wrong_attention(name, monkeypatch):
    """The second result, which is that of the device, ignores the mask."""
    calls = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def ignore_mask(query, key, value, mask=None, is_causal=False):
        calls.append(query.dtype)
        if calls.count(query.dtype) == 2:
            mask, is_causal = None, False
        return attend(query, key, value, mask, is_causal=is_causal)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", ignore_mask)
    monkeypatch.setattr(devices, "_train_encoder", lambda _: torch.zeros(1))
    assert name in devices.find_wrong_computations(CPU)


@pytest.mark.parametrize(("model", "name"), [("Embedding", "a Transformer"), ("LSTM", "an LSTM")])
def test_the_check_finds_wrong_training(model, name, monkeypatch):
    """On the device, the optimizer changes nothing."""
    steps = []
    step = torch.optim.AdamW.step

    def skip_step(self):
        steps.append(1)
        if (len(steps) - 1) // devices.NUM_STEPS % 2 == 0:
            step(self)

    monkeypatch.setattr(torch.optim.AdamW, "step", skip_step)
    assert f"training {name}" in devices.find_wrong_computations(CPU)


def test_an_operation_that_a_device_lacks_is_wrong():
    def compute(device):
        if device.type == "meta":
            raise NotImplementedError("not implemented for this device")
        return torch.zeros(1)

    assert devices._is_equal(compute, CPU, 0.0)
    assert not devices._is_equal(compute, torch.device("meta"), 0.0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tpu", "unknown device 'tpu'; pass cpu, cuda, cuda:N, mps or auto"),
        ("cuda", "PyTorch finds no GPU; pass cpu or auto"),
        ("cuda:1", "PyTorch finds no GPU"),
        ("mps", "needs a Mac with Apple silicon"),
    ],
)
def test_devices_that_do_not_exist_are_refused(cli, toy, tiny, name, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    status, _, err = cli("classify", "--data", toy, "--model", tiny, "--device", name)
    assert (status, words in " ".join(err.split()), err.count("\n")) == (2, True, 1)


def test_a_gpu_is_chosen_by_number(gpus, monkeypatch):
    devices.request_device("cuda:1")
    assert devices.get_device() == torch.device("cuda:1")
    with pytest.raises(UserError, match="--device cuda:2: the last GPU is cuda:1"):
        devices.request_device("cuda:2")
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    devices._find_device.cache_clear()
    devices.request_device("cuda")
    assert devices.get_device() == torch.device("cuda:1")
    with pytest.raises(UserError, match="each process has a GPU of its own; pass cuda"):
        devices.request_device("cuda:0")


def test_trainer_uses_only_the_requested_gpu(gpus):
    devices.request_device("cuda:1")
    built = arguments._use_device(SimpleNamespace())
    assert (vars(built)["_setup_devices"], built._n_gpu) == (torch.device("cuda:1"), 1)


def test_trainer_keeps_its_device_in_the_attributes_that_are_set(tmp_path):
    """`_use_device` sets these private attributes."""
    built = TrainingArguments(str(tmp_path), use_cpu=True)
    assert vars(built)["_setup_devices"] == built.device == CPU
    vars(built)["_setup_devices"] = torch.device("meta")
    built._n_gpu = 7
    assert (built.device, built.n_gpu) == (torch.device("meta"), 7)


@pytest.mark.slow
def test_the_device_is_printed_and_recorded(cli, toy, tiny, tmp_path):
    run = tmp_path / "run"
    args = ["--data", toy, "--model", tiny, "--max-steps", 1, "--device", "cpu", "-o", run]
    status, _, err = cli("classify", *args)
    assert (status, "on cpu" in " ".join(err.split())) == (0, True)
    content = yaml.safe_load((run / "run.yaml").read_text())
    assert content["provenance"]["device"] == "cpu"
    assert "device" not in content["settings"]
    assert json.loads((run / "metrics.json").read_text())["training"]["device"] == "cpu"
    for command in (["predict", run, "--text", "a"], ["evaluate", run, "-o", tmp_path / "scores"]):
        status, _, err = cli(*command, "--device", "cpu")
        assert (status, "device: cpu" in err) == (0, True)
    assert bertkit.load(run, device="cpu").model.device == CPU
    with pytest.raises(UserError, match="unknown device 'gpu'"):
        bertkit.load(run, device="gpu")
