# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""The applications of the recipes: checked, built, started from their artifacts, and asked.

The files are those of the page. Mistakes that it lists are made in them, and it quotes what is said
then.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
import transformers
import yaml
from click.testing import CliRunner
from tokenizers import Tokenizer, models, pre_tokenizers

import readme_files
from conftest import HANG_S
from serve_warm.builder.app import App, load_app
from serve_warm.builder.build import build
from serve_warm.builder.cluster import ReadyReplica, Starting
from serve_warm.builder.publishing import Destination
from serve_warm.cli import serve_warm
from serve_warm.errors import BuildFailed
from serve_warm.stores import open_store

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(600)]

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "recipes.md").read_text()
DIFFS = readme_files.diffs(GUIDE)
COMMANDS = re.findall(
    r"^\$ serve-warm check (\S+)\n\$ serve-warm build (\S+) ", GUIDE, re.MULTILINE
)
X = [0.5, -1.0, 2.0, 0.0, 1.5, -0.5, 3.0, 1.0]

FOUND_BY_CHECK = {
    "batch": ("SIZE = 4", "SIZE = 8"),
    "streaming": ("async def __call__", "def __call__"),
    "routes": ('"POST /score"', '"POST /scores"'),
    "service": ("target=self.Score", 'target="POST /Score"'),
}
"""Mistakes by the recipe that they are made in: what is replaced, and by what."""
FOUND_BY_A_START = {
    "multiplexed": (", model_id=language", ""),
    "routes": ('json={"values"', 'json={"value"'),
    "service": ("(self, request):", "(self, request, grpc_context):"),
    "composition": (
        "class Router:",
        """class Router(serve_warm.WarmupMixin):
    def warmup_inputs(self):
        return serve_warm.Input(target="POST /", json=[[0.0] * 8])
""",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with the files of the page, and variants with mistakes."""
    folder = tmp_path_factory.mktemp("recipes") / "code"
    folder.mkdir()
    for name, diff in DIFFS.items():
        (folder / name).write_text(readme_files.after(diff))
    for kind, mistakes in (("checked", FOUND_BY_CHECK), ("started", FOUND_BY_A_START)):
        for name, (right, wrong) in mistakes.items():
            text = (folder / f"{name}.py").read_text()
            assert right in text
            (folder / f"{kind}_{name}.py").write_text(text.replace(right, wrong))
    (folder / "service.yaml").write_text(block("yaml", "service.yaml"))
    save_model(folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder


def block(language: str, name: str) -> str:
    """Return the block of the page whose first line names a file."""
    [text] = re.findall(rf"```{language}\n# {re.escape(name)}\n(.*?)```", GUIDE, re.DOTALL)
    return str(text)


def save_model(folder: Path) -> None:
    """Write a classifier with a vocabulary of few words, as `save_pretrained` does."""
    words = {"[UNK]": 0, "[PAD]": 1, "a": 2, "good": 3, "film": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)
    torch.manual_seed(0)
    shape = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=64,
    )
    transformers.BertForSequenceClassification(shape).save_pretrained(folder)


@pytest.fixture(scope="module")
def load(folder: Path) -> Callable[..., App]:
    """Load an application by its module, with the folder as the replicas' working directory."""
    code = shutil.make_archive(str(folder), "zip", folder.parent, folder.name)

    def load_one(module: str, deployment: str | None = None, **options: Any) -> App:
        document = {"applications": [{"import_path": f"{module}:app"}]}
        if (folder / f"{module}.yaml").exists():
            document = yaml.safe_load((folder / f"{module}.yaml").read_text())
        [application] = document["applications"]
        application["runtime_env"] = {"working_dir": f"file://{code}"}
        if deployment is not None:
            application["deployments"] = [{"name": deployment, **options}]
        file = folder.parent / f"{module}.yaml"
        file.write_text(yaml.safe_dump(document))
        return load_app(str(file), deployment=deployment)

    return load_one


@pytest.fixture
def warm(load, on, tmp_path) -> Callable[[str], contextlib.AbstractContextManager[ReadyReplica]]:
    """Build for a recipe, and start it from its artifact."""

    @contextlib.contextmanager
    def start_one(name: str) -> Iterator[ReadyReplica]:
        app = load(name)
        built = build(app, Destination.of(open_store(str(tmp_path))), on=on)
        with on.running(app, {"artifact": built.store, "on_missing": "fail"}) as started:
            yield started

    return start_one


def is_warm(report: Mapping[str, Any], *, proven: int) -> bool:
    """Return whether all was loaded, proven, and nothing compiled then or since."""
    assert report["verdict"] == "full_hit"
    assert report["covered"] == {"expected": proven, "proven": proven}
    assert {use["level"] for use in report["entries"]} == {2}
    assert report["warnings"] == []
    counts = (
        count
        for period in ("warmup", "after_ready")
        for name, count in report[period].items()
        if name != "calls"
    )
    return not any(counts)


def post(started: ReadyReplica, path: str, json: Any, **headers: str) -> Any:
    """Send a request through Serve's proxy, and return what its answer holds."""
    response = requests.post(started.url + path, json=json, headers=headers, timeout=HANG_S)
    response.raise_for_status()
    return response.json()


# The page, without a cluster -------------------------------------------------------------------


@pytest.mark.parametrize("name", DIFFS)
def test_a_recipe_was_a_deployment_without_serve_warm(name):
    """Without the added lines and with the removed lines, the code does not name serve_warm."""
    before = readme_files.before(DIFFS[name])

    ast.parse(before)
    assert "serve.deployment" in before
    assert not re.search("warm", before)


@pytest.mark.parametrize(("checked", "built"), COMMANDS)
def test_check_finds_nothing_wrong_in_a_recipe(checked, built, folder, monkeypatch):
    """By the command of the page, before a build: no problem, and the store that is still empty."""
    monkeypatch.chdir(folder)

    result = CliRunner().invoke(serve_warm, ["check", checked])

    assert (built, result.exit_code) == (checked, 0), result.output
    warnings = re.findall(r"^warning: (.*)", result.output, re.MULTILINE)
    if checked.endswith(".yaml"):  # `serve deploy` starts replicas in another folder
        assert f"{checked}: artifact ./artifacts: the path is relative" in warnings.pop(0)
    assert len(warnings) == 1, result.output
    assert "/artifacts does not exist: it has no artifact for" in warnings[0]
    assert f"0 problems, {2 if checked.endswith('.yaml') else 1} warning" in result.output


def test_each_recipe_has_its_commands():
    """Check, build, run: the page names them for each file."""
    assert [re.split("[:.]", checked)[0] for checked, _ in COMMANDS] == [
        Path(name).stem for name in DIFFS
    ]


def said(text: str, *, around: str) -> list[str]:
    """Return those of the page's quotes that hold `around`, and fail unless `text` has them."""
    rows = "\n".join(line for line in GUIDE.splitlines() if line.startswith("|"))
    quotes = [quote for quote in re.findall("`([^`]+)`", rows) if around in quote]
    assert quotes
    assert [quote for quote in quotes if quote not in text] == []
    return quotes


@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("batch", "max_batch_size=8"),
        ("streaming", "is a sync method"),
        ("routes", "no route for"),
        ("routes", "did you mean"),
        ("service", "is an HTTP request"),
    ],
)
def test_check_says_what_the_page_quotes(name, around, folder, monkeypatch):
    """A mistake that the page says check finds is found, in the words of the page."""
    monkeypatch.chdir(folder)

    result = CliRunner().invoke(serve_warm, ["check", f"checked_{name}:app"])

    assert said(result.output, around=around)


# On Ray ----------------------------------------------------------------------------------------


@pytest.mark.stress  # a minute for one quoted line
def test_a_start_says_what_the_page_quotes(load, on):
    """For inputs that cannot be replayed, the build's error. For a router, its warning."""
    deployments = {
        "multiplexed": "Translator",
        "routes": "Routes",
        "service": "Scorer",
        "composition": "Router",
    }
    outcomes = {}
    with contextlib.ExitStack() as stack:
        starts = {}
        for name, deployment in deployments.items():
            # All at once: none compiles anything.
            app = load(f"started_{name}", deployment, ray_actor_options={"num_cpus": 0})
            starts[name] = stack.enter_context(on.starting(app, {"artifact": None}))
        for name, starting in starts.items():
            outcomes[name] = outcome(starting)

    assert said(outcomes["multiplexed"], around="model ID cannot be empty")
    assert said(outcomes["routes"], around="was answered with 422")
    assert said(outcomes["service"], around="required positional argument: 'grpc_context'")
    assert said(outcomes["composition"], around="this process has no compiled code")
    assert said(outcomes["composition"], around="is warmed up by")


def outcome(starting: Starting) -> str:
    """Return the error of a start, or the warnings of a replica that is ready."""
    try:
        while (start := starting.poll()) is None:
            time.sleep(0.1)
    except BuildFailed as error:
        return str(error)
    return "\n".join(start.report()["warnings"])


@pytest.mark.stress  # each recipe takes 25 to 50 s
def test_the_pipeline_answers_as_it_does_uncompiled(warm, folder):
    """Texts of every length are padded to the one shape, and cut there."""
    texts = ["film", "a good film", "a good film " * 50]
    eager = transformers.pipeline("text-classification", model=str(folder / "model"))

    with warm("pipeline") as started:
        answers = [post(started, "/", {"text": text}) for text in texts]
        report = started.report()

    assert is_warm(report, proven=1)
    for text, [answer] in zip(texts, answers, strict=True):
        [expected] = eager(text, padding="max_length", truncation=True, max_length=64)
        assert answer["label"] == expected["label"]
        assert answer["score"] == pytest.approx(expected["score"], abs=1e-5)


@pytest.mark.stress  # each recipe takes 25 to 50 s
def test_requests_of_a_batch_get_their_own_answers(warm):
    """Requests get the same answers together and alone, whatever the size of the batch."""
    rows = [[value * factor for value in X] for factor in range(12)]

    with warm("batch") as started, ThreadPoolExecutor(4) as clients:
        alone = [post(started, "/", row) for row in rows]
        together = list(clients.map(lambda row: post(started, "/", row), rows))
        report = started.report()

    assert is_warm(report, proven=4)
    torch.testing.assert_close(torch.tensor(together), torch.tensor(alone))


@pytest.mark.stress  # each recipe takes 25 to 50 s
def test_a_stream_is_read_while_it_is_made(warm):
    """Pieces of an answer that would take hours are there; a short one is the same to its end."""
    with warm("streaming") as started:
        with requests.get(
            started.url + "/?max=1000000000", stream=True, timeout=HANG_S
        ) as response:
            pieces = response.iter_lines()
            first = [int(next(pieces)) for _ in range(3)]
        short = requests.get(started.url + "/?max=4", timeout=HANG_S).text.split()
        report = started.report()

    assert is_warm(report, proven=1)
    assert len(short) == 4
    assert [int(piece) for piece in short[:3]] == first


@torch.inference_mode()
@pytest.mark.stress  # each recipe takes 25 to 50 s
def test_models_that_are_made_later_have_entries(warm):
    """This includes an undeclared third model, and the first model when it is made again."""
    asked = ["de", "fr", "it", "de", "fr"]

    with warm("multiplexed") as started:
        answers = [post(started, "/", [X], serve_multiplexed_model_id=each) for each in asked]
        report = started.report()

    assert is_warm(report, proven=2)
    assert report["traced"] == "none"
    made = importlib.import_module("multiplexed").load
    for language, answer in zip(asked, answers, strict=True):
        torch.testing.assert_close(torch.tensor(answer), made(language)(torch.tensor([X])))


@pytest.mark.stress
def test_a_router_reaches_the_model_of_another_deployment(warm):
    """The HTTP answer equals the answer of the other deployment's handle."""
    rows = [X, [0.0] * 8, [-value for value in X]]

    with warm("composition") as started:
        answer = post(started, "/", rows)
        by_handle = started.handle.rank.remote(rows).result(timeout_s=HANG_S)
        report = started.report()

    assert is_warm(report, proven=1)
    assert answer == by_handle
    assert sorted(answer) == [0, 1, 2]


@pytest.mark.stress
def test_a_route_validates_and_answers(warm):
    """A bad body is answered 422 by FastAPI, and compiles nothing either."""
    with warm("routes") as started:
        answer = post(started, "/score", {"values": X})
        bad = requests.post(started.url + "/score", json={"value": X}, timeout=HANG_S)
        report = started.report()

    assert is_warm(report, proven=1)
    assert isinstance(answer, float)
    assert bad.status_code == 422


@pytest.mark.stress
def test_the_client_of_the_page_gets_a_score_over_grpc(warm, cluster):
    """The score through Serve's gRPC proxy equals the result of the handle."""
    messages = importlib.import_module("scorer_pb2")
    request = messages.ScoreRequest(values=range(1, 9))

    with warm("service") as started:
        client = block("python", "client.py")
        for shown, used in {
            "localhost:9000": cluster.grpc,
            '"scorer")': f'"{started.url.rpartition("/")[2]}")',
        }.items():
            assert shown in client
            client = client.replace(shown, used)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(client, {})
        by_handle = started.handle.Score.remote(request).result(timeout_s=HANG_S)
        report = started.report()

    assert is_warm(report, proven=1)
    assert float(printed.getvalue()) == by_handle.score
