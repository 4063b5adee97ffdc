from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import outpace
from fingerprint import smi
from outpace import fingerprint
from outpace.fingerprint import collect, environment, nvidia
from server.running import until


def test_it_is_json_and_names_what_matters() -> None:
    facts = json.loads(json.dumps(fingerprint.machine()))
    assert facts["cores"] >= 1
    assert facts["torch"] == torch.__version__
    assert facts["cuda"] == torch.version.cuda
    assert facts["threads"] == torch.get_num_threads()
    assert facts["outpace"] == outpace.__version__
    assert facts["uptime_s"] > 0
    assert facts["cpu"]
    assert isinstance(facts["gpus"], list)


def test_it_takes_under_a_second_of_a_core_and_no_torch() -> None:
    code = (
        "import sys, time; from outpace.fingerprint import machine; began = time.process_time(); "
        "facts = machine(); print(time.process_time() - began, 'torch' in sys.modules, facts['torch'], "
        "facts['threads'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, loaded, version, threads = done.stdout.split()
    assert float(seconds) < 1.0
    assert (loaded, version, threads) == ("False", torch.__version__, "None")


def test_the_commit_is_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*args: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *args], check=True, capture_output=True)

    package = tmp_path / "src" / "outpace"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(collect, "PACKAGE_FOLDER", package)
    git("init")
    git("add", ".")
    git("commit", "-m", "x")
    clean = fingerprint.commit()
    assert clean is not None
    assert len(clean) == 12
    (package / "__init__.py").write_text("changed")
    assert fingerprint.commit() == f"{clean}+changes"


def test_a_package_inside_somebody_elses_checkout_has_no_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    subprocess.run(["git", "-C", str(tmp_path), "init"], check=True, capture_output=True)
    package = tmp_path / ".venv" / "outpace"
    package.mkdir(parents=True)
    monkeypatch.setattr(collect, "PACKAGE_FOLDER", package)
    assert fingerprint.commit() is None


def test_one_line_for_people() -> None:
    facts = {"cpu": "Some CPU", "cores": 2, "torch": "2.13.0", "threads": 2, "python": "3.11.7", "gpus": []}
    assert fingerprint.one_line(facts) == "Some CPU, 2 cores · torch 2.13.0, 2 threads · Python 3.11.7"
    assert fingerprint.one_line({**facts, "gpus": [{"name": "NVIDIA H200"}]}).startswith("NVIDIA H200 ·")
    eight = {**facts, "threads": None, "gpus": [{"name": "NVIDIA H200"}] * 8}
    assert fingerprint.one_line(eight) == "8 × NVIDIA H200 · torch 2.13.0 · Python 3.11.7"


# nvidia-smi


def test_one_gpu() -> None:
    (gpu,) = nvidia.read_gpus(smi.query())
    assert gpu["name"] == "NVIDIA H200"
    assert gpu["pcie.link.gen.current"] == "5" and gpu["power.limit"] == "700.00 W"
    assert gpu["throttle_reasons"] == ["idle"]
    assert nvidia.read_topology(smi.TOPOLOGY_1) == {
        "devices": ["GPU0"],
        "links": {"GPU0": "X"},
        "near_cores": {"GPU0": "0-15"},
    }


def test_eight_gpus() -> None:
    assert len(nvidia.read_gpus(smi.query(8))) == 8
    found = nvidia.read_topology(smi.TOPOLOGY_8)
    assert found["devices"] == [*(f"GPU{n}" for n in range(8)), "NIC0", "NIC1"]
    assert found["links"]["GPU5"] == "NV18 NV18 NV18 NV18 NV18 X NV18 NV18 SYS PIX"
    assert found["near_cores"]["GPU5"] == "48-95,144-191" and len(found["links"]) == 8
    links = nvidia.read_nvlink(smi.nvlink(8, down=2))
    assert links["GPU0"] == "18 links up (26.562 GB/s)"
    assert links["GPU7"] == "16 links up (26.562 GB/s), 2 down"


def test_gpus_without_nvlink() -> None:
    found = nvidia.read_topology(smi.TOPOLOGY_PCIE)
    assert found["devices"] == ["GPU0", "GPU1", "mlx5_0"]
    assert found["links"] == {"GPU0": "X PHB SYS", "GPU1": "PHB X SYS"}
    assert nvidia.read_nvlink("Unable to retrieve NVLink information as all links are inActive\n") == {}
    assert nvidia.read_nvlink("GPU 0: NVIDIA L4 (UUID: GPU-1)\n") == {}


@pytest.mark.parametrize("missing", ["[N/A]", "[Not Supported]", "N/A", "[Unknown Error]", "[GPU is lost]", ""])
def test_fields_that_are_missing_are_left_out(missing: str) -> None:
    (gpu,) = nvidia.read_gpus(smi.query(power__draw=missing, clocks_throttle_reasons__active=missing))
    assert "power.draw" not in gpu and "throttle_reasons" not in gpu
    assert gpu["name"] == "NVIDIA H200"


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("0x0000000000000000", []),
        ("0x0000000000000044", ["power cap", "hardware thermal slowdown"]),
        ("0x00000000000001FF", list(nvidia.THROTTLES.values())),
        ("0x0000000000000404", ["power cap", "unknown bits 0x400"]),
        ("Active", ["not understood: Active"]),
    ],
)
def test_throttle_reasons_have_names(mask: str, names: list[str]) -> None:
    assert nvidia.throttle_reasons(mask) == names


@pytest.mark.parametrize("printed", ["", "No devices were found\n", "garbage, with, commas\n", "\x1b[4m\n\n"])
def test_whatever_is_printed_there_is_an_answer(printed: str) -> None:
    assert nvidia.read_gpus(printed) == []
    assert nvidia.read_topology(printed) == {} and nvidia.read_nvlink(printed) == {}
    assert nvidia.read_cuda(printed) is None


def test_the_program_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = smi.install(tmp_path, gpus=smi.query(8), topology=smi.TOPOLOGY_8, links=smi.nvlink(8))
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    facts = fingerprint.machine()
    assert len(facts["gpus"]) == 8 and facts["cuda_driver"] == "12.8"
    assert facts["topology"]["links"]["GPU0"].startswith("X NV18") and len(facts["nvlink"]) == 8


def test_a_driver_that_refuses_a_field_tells_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = [f for f in nvidia.FIELDS if f != "vbios_version"]
    row = ", ".join(smi.H200[field] for field in without) + "\n"
    place = smi.install(tmp_path, gpus=row, refuses="vbios_version")
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    (gpu,) = nvidia.gpus()
    assert "vbios_version" not in gpu and gpu["pcie.link.width.max"] == "16"


def test_no_program_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("nvidia-smi") is None
    facts = fingerprint.machine()
    assert "topology" not in facts and "cuda_driver" not in facts and facts["commit"] is None


# the environment


def test_only_what_moves_speed_and_no_keys() -> None:
    given = {
        "NCCL_ALGO": "Ring",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "OMP_NUM_THREADS": "4",
        "VLLM_API_KEY": "sk-1",
        "SGLANG_AUTH": "x",
        "TORCH_HUB_TOKEN": "t",
        "VLLM_MAX_TOKENS_PER_EXPERT": "3",
        "NCCL_NET_PROXY": "http://me:pw@proxy",
        "AWS_SECRET_ACCESS_KEY": "s",
        "HOME": "/root",
        "PATH": "/bin",
    }
    assert environment.telling(given) == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "4",
        "VLLM_MAX_TOKENS_PER_EXPERT": "3",
    }


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux shows other processes' environment")
def test_another_process_and_what_it_started() -> None:
    code = "import subprocess, sys, os; os.environ['NCCL_ALGO'] = 'Tree'; subprocess.run([sys.executable, '-c', "
    code += "'input()'])"
    env = {**os.environ, "NCCL_ALGO": "Ring", "MY_KEY": "hidden"}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdin=subprocess.PIPE)

    def seen() -> list[dict[str, Any]]:
        return environment.of_processes([process.pid])

    try:
        until(lambda: ["NCCL_ALGO" in each.get("environment", {}) for each in seen()] == [True, True])
        found = seen()
    finally:
        process.communicate(b"\n", timeout=120)
    assert found[0]["environment"]["NCCL_ALGO"] == "Ring", "as it was started, not as it changed itself"
    assert found[1]["environment"]["NCCL_ALGO"] == "Tree", "the child got what was changed"
    assert "hidden" not in json.dumps(found)


def test_a_process_that_is_not_there(tmp_path: Path) -> None:
    assert environment.of_processes([1], tmp_path / "none")[0]["unknown"] == "this system does not list processes"
    assert environment.of_processes([1], tmp_path)[0]["unknown"] == "there is no such process"
    assert environment.of_processes([]) == []
