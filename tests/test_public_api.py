"""`__all__` is what is exported, every name resolves, and the package costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys

import outpace


def test_every_name_in_all_resolves() -> None:
    for name in outpace.__all__:
        assert getattr(outpace, name) is not None


def test_all_names_each_thing_once() -> None:
    assert len(outpace.__all__) == len(set(outpace.__all__))


def test_all_is_everything_public() -> None:
    modules = {
        "checks",
        "cli",
        "config",
        "distributed",
        "engine",
        "errors",
        "fingerprint",
        "grammar",
        "kernels",
        "lab",
        "loops",
        "models",
        "parent",
        "schema_keywords",
        "server",
        "speculation",
        "streams",
        "training",
        "types",
        "version",
        "wording",
    }
    machinery = {"TYPE_CHECKING", "annotations", "import_module"}
    public = {name for name in vars(outpace) if not name.startswith("_")}
    assert public - modules - machinery <= set(outpace.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(outpace, "no_such_name")


def test_settings_come_without_torch() -> None:
    code = "import sys, outpace; outpace.SamplingParams(); assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_star_import_gives_exactly_all() -> None:
    namespace: dict[str, object] = {}
    exec("from outpace import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(outpace.__all__)
