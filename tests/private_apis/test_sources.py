# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Digests of functions: what changes them, and what does not."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from serve_warm.private_apis.sources import PackageSources

PLAIN = """
class Tracker:
    def read(self, name):
        return self.items[name]
"""


def digest(text: str, place: str = "pkg.mod:Tracker.read") -> str | None:
    files = {"pkg/mod.py": text}
    return PackageSources(files.get, lambda _: ["mod"]).digest(place)


@pytest.mark.parametrize(
    "same",
    [
        PLAIN.replace("    def read", "    # a comment\n\n    def read"),
        PLAIN.replace("        return", '        """Return an item."""\n        return'),
        PLAIN.replace("self.items[name]", "(self.items[\n            name])"),
        PLAIN + "\n    def other(self): ...\n",
        f"if True:\n{PLAIN}".replace("\n", "\n    "),
        f"try:\n    import fast\nexcept ImportError:\n{PLAIN}".replace("\n", "\n    ").replace(
            "    except", "except"
        ),
    ],
)
def test_a_digest_is_about_what_the_function_does(same: str) -> None:
    """Comments, docstrings, layout and other functions do not count."""
    assert digest(same) == digest(PLAIN) is not None


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("[name]", ".get(name)"),
        PLAIN.replace("name", "key"),
        PLAIN.replace("    def", "    @property\n    def"),
        PLAIN.replace("    def", "    async def"),
        PLAIN + "    def read(self, name): ...\n",
    ],
)
def test_another_function_has_another_digest(other: str) -> None:
    """Also for a second definition of the same name, because the later one counts in Python."""
    assert digest(other) not in (None, digest(PLAIN))


@pytest.mark.parametrize(
    "place", ["pkg.mod:Tracker.write", "pkg.mod:Other.read", "pkg.mod:read", "pkg.gone:Tracker"]
)
def test_what_is_not_there_has_no_digest(place: str) -> None:
    assert digest(PLAIN, place) is None


def test_classes_and_assignments_have_digests() -> None:
    """Some patches add to a class, or replace a value of a module."""
    assert digest("class A: x = 1", "pkg.mod:A") != digest("class A: x = 2", "pkg.mod:A")
    assert digest("A: int = 1", "pkg.mod:A") != digest("A: int = 2", "pkg.mod:A")


def test_a_star_counts_all_classes_of_a_folder() -> None:
    """A method of a new class is new code that a patch wraps."""
    one = "class A:\n def f(self): return 1\nclass B: ..."
    two = "class A:\n def f(self): return 1\nclass B:\n def f(self): return 2"

    assert digest(one, "pkg:*.f") not in (None, digest(two, "pkg:*.f"))
    assert digest(one, "pkg:*.g") is None


def test_a_wheel_and_an_installed_package_have_the_same_digests(tmp_path: Path) -> None:
    """A wheel is judged before anybody installs it."""
    place = "yaml.loader:SafeLoader.__init__"
    installed = PackageSources.installed("yaml")
    assert installed is not None
    import yaml.loader

    wheel = tmp_path / "yaml.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("yaml/loader.py", Path(yaml.loader.__file__).read_text())
        archive.writestr("yaml/__init__.py", "")
    packed = PackageSources.of_wheel(wheel)

    assert packed.digest(place) == installed.digest(place) is not None
    assert packed.files() == installed.files()
    assert PackageSources.installed("no_such_package_here") is None
