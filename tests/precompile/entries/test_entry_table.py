# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The part `precompiled`: its files, and what becomes of damaged ones. One small graph in all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import serve_warm
from levels import build, eager_below, served
from serve_warm.errors import StoreError
from serve_warm.precompile.dispatch.session import SESSION
from serve_warm.precompile.entries.model_tree import tree
from serve_warm.precompile.entries.table import FORMAT, INDEX, EntryTable
from serve_warm.precompile.facts.no_entry import NoEntry

X = torch.ones(2, 4)
SOURCE = "serve_warm.precompile.calls.signature"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """Entries for one call of a linear layer: nothing that a C++ compiler is needed for."""
    model = serve_warm.compile(torch.nn.Linear(4, 4).eval(), dynamic=False)
    folder = tmp_path_factory.mktemp("entries")
    build(folder, lambda: model(X))
    yield folder, model
    SESSION.unload()


@pytest.fixture
def copy(built: tuple[Path, Any], tmp_path: Path) -> Path:
    return shutil.copytree(built[0], tmp_path / "copy")


def edit(folder: Path, change: Callable[[Any], Any]) -> None:
    index = json.loads((folder / INDEX).read_bytes())
    (folder / INDEX).write_text(json.dumps(change(index) or index))


def answer(model: Any) -> tuple[int, str]:
    """Return the level of a call, whose result must be eager's, and the reason for it."""
    with torch.inference_mode(), eager_below():
        result = served(lambda: model(X))
    assert torch.equal(result.value, model._orig_mod(X))
    return result.level, result.reason


def test_what_is_written_is_what_is_read(built: tuple[Path, Any]):
    once = EntryTable.read(built[0])
    assert once.to_files().keys() == {p.name for p in built[0].iterdir()}
    assert json.loads(once.to_files()[INDEX]) == json.loads((built[0] / INDEX).read_bytes())


@pytest.mark.parametrize(
    "garbage",
    [
        *(None, b"", b"\xff\x00", b"null", b"[]", b"5", b'"text"', b"{}", b'{"format": 1}'),
        b'{"format": 1, "units": 5, "facts": {}, "refused": []}',
        b'{"format": 1, "units": [{}], "facts": {}, "refused": []}',
        b'{"format": 1, "units": [], "facts": {"a": {"steps": [[]], "facts": []}}, "refused": []}',
        b'{"format": 1, "units": [], "facts": {}, "refused": [1]}',
    ],
    ids=str,
)
def test_a_garbage_index_is_one_sentence(garbage: bytes | None, tmp_path: Path):
    """Nothing is loaded, nothing raises, and the sentence says that it is about the entries."""
    if garbage is not None:
        (tmp_path / INDEX).write_bytes(garbage)
    why = SESSION.load(tmp_path)
    assert why.startswith("its entries ")
    assert "\n" not in why


def test_entries_that_nobody_waits_for_are_not_used(copy: Path):
    """As when the disk was slow and the start has continued without the artifact."""

    def check_wanted() -> None:
        raise StoreError("the start no longer waits for this artifact")

    SESSION.unload()
    with pytest.raises(StoreError):
        SESSION.load(copy, check_wanted=check_wanted)

    assert SESSION.active is SESSION.loaded is None


def test_another_format_is_not_read(copy: Path):
    edit(copy, lambda index: index.update(format=FORMAT + 1))
    says = f"its entries have format {FORMAT + 1}, but this release reads format {FORMAT}"
    assert SESSION.load(copy) == says


@pytest.mark.parametrize("name", ["../escape", "a/b", "", "entry.bin", "/etc/passwd", 5])
def test_a_file_name_cannot_leave_the_folder(copy: Path, name: Any):
    edit(copy, lambda index: index["units"][0]["entries"][0].update(file=name))
    with pytest.raises(NoEntry, match=r"invalid entry name|cannot be read"):
        EntryTable.read(copy)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (cut, "damaged"),
        (flip, "damaged"),
    ],
    ids=["missing", "empty", "cut", "one bit"],
)
def test_a_damaged_entry_is_level_1(built, copy, damage, why):
    model, [path] = built[1], copy.glob("entry_*")
    damage(path)
    loaded = SESSION.load(copy)
    assert loaded == ""
    assert answer(model) == (1, f"its file {path.name} is {why}")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda entry: entry["references"].update(x=["no.such.module", "thing"]),
            "No module named 'no'",
        ),
        (lambda entry: entry["references"].update(x=["math", "gone"]), "gone"),
        (lambda entry: entry["sources"].update({SOURCE: "00"}), SOURCE),
        (lambda entry: entry["sources"].update({"no.such.module": "00"}), "no.such.module"),
    ],
    ids=["module", "name", "source", "source gone"],
)
def test_an_entry_that_does_not_fit_this_program_is_level_1(built, copy, change, why):
    edit(copy, lambda index: change(index["units"][0]["entries"][0]))
    SESSION.load(copy)
    level, reason = answer(built[1])
    assert level == 1
    assert why in reason


def test_an_intact_copy_is_level_2(built: tuple[Path, Any], copy: Path):
    """The tests above fail for their own reasons."""
    SESSION.load(copy)
    assert answer(built[1]) == (2, "")


def pair() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).eval()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "part gone": lambda m: delattr(m, "1"),
    "part added": lambda m: m.append(torch.nn.ReLU()),
    "other class": lambda m: setattr(m, "1", torch.nn.LayerNorm(2)),
}


@pytest.mark.parametrize("change", [pytest.param(c, id=name) for name, c in CHANGES.items()])
def test_a_changed_module_is_another_tree(change: Callable[[Any], Any]):
    """Entries are shared by what has equal lines, and by nothing else."""
    module = pair()
    change(module)
    assert tree(module) != tree(pair())


def test_other_weights_are_the_same_tree():
    """Values are not in it: modules of one structure share entries."""
    one, other = pair(), pair()
    other.load_state_dict({name: tensor + 1 for name, tensor in other.state_dict().items()})
    assert tree(one) == tree(other)


def test_a_method_has_the_tree_of_its_module():
    module = pair()
    assert tree(module.forward) == tree(module)
    assert tree(len) == []
