# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Applications that were written from the documents alone, before anybody saw the code."""

import asyncio
import os
import zlib

import torch
from _row import row
from ray import serve
from torch import nn

import serve_warm
from serve_warm import Buckets, Input, WarmupMixin

torch.manual_seed(0)

SIZE = 4
WIDTH = 6


@row(
    "batch_padded_right",
    [("predict", [[1.0] * WIDTH]), ("predict", [[3] * WIDTH])],
    kind="narrow",
    quiet=True,
    options={"max_ongoing_requests": 8},
)
class Batched(WarmupMixin):
    """Right: @serve.batch makes batches of one to four, and each batch is padded to four rows.

    Every possible batch size is declared, and the model sees only one shape. The public method
    checks the width before the batch is formed. No request can cause a compile, so a warning about
    batch sizes or axes would be a false alarm.
    """

    def __init__(self):
        model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 2))
        self.model = serve_warm.compile(model.eval(), dynamic=False)

    def warmup_inputs(self):
        return [
            Input(target=self.predict, args=([0.0] * WIDTH,), concurrency=n, name=f"batch of {n}")
            for n in range(1, SIZE + 1)
        ]

    async def predict(self, values: list[float]) -> list[float]:
        if len(values) != WIDTH:
            raise ValueError(f"send {WIDTH} numbers")
        return await self.score(values)

    @serve.batch(max_batch_size=SIZE, batch_wait_timeout_s=0.05)
    async def score(self, rows: list[list[float]]) -> list[list[float]]:
        x = torch.zeros(SIZE, WIDTH)
        x[: len(rows)] = torch.tensor(rows)
        return (await self.on_model_thread(self._run, x))[: len(rows)]

    def _run(self, x):
        with torch.inference_mode():
            return self.model(x).tolist()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, 16)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x))).softmax(-1)


@row(
    "blank_rows_filtered",
    [("answers", [[[1.0] * 6] * 5]), ("answers", [[[0.0] * 6, [0.0] * 6]])],
    kind="narrow",
)
class Survey(WarmupMixin):
    """The handler drops blank rows, and a request can consist only of blank rows.

    The model is compiled with dynamic=True and proven with batches of 8, 3 and 1, as the docs
    advise. A request with only blank rows still calls the model, with a batch of 0. torch
    specialises the sizes 0 and 1, so no proven graph accepts it, and the first such request
    compiles.
    """

    def __init__(self):
        self.model = torch.compile(Classifier().eval(), dynamic=True)

    def warmup_inputs(self):
        return [
            Input(target=self.answers, args=([[1.0] * 6] * n,), name=f"batch {n}")
            for n in (8, 3, 1)
        ]

    async def answers(self, rows: list[list[float]]) -> list[list[float]]:
        if any(len(row) != 6 for row in rows):
            raise ValueError("a row has six numbers")
        filled = [row for row in rows if any(row)]
        return await self.on_model_thread(self._run, filled)

    def _run(self, rows):
        x = torch.tensor(rows, dtype=torch.float32).reshape(len(rows), 6)
        with torch.inference_mode():
            return self.model(x).tolist()


FULL = 64


class Drift(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 4)

    def forward(self, rows):
        found = self.project(rows)
        return (found.mean(0).abs() / (found.std(0) + 1e-6)).max()


@row(
    "buffer_flush_when_full",
    [("classify", [[0.1 * (n % 7)] * 8]) for n in range(FULL)],
    kind="first_request",
)
class Monitored(WarmupMixin):
    """Every 64th request also flushes a buffer through a second compiled model, as one batch.

    The replays of the declared input fill the buffer only a little, so the drift detector is never
    called before READY. In traffic, the request that fills the buffer runs the detector inside its
    own handler, and waits for the detector's first compile.
    """

    def __init__(self):
        self.model = torch.compile(nn.Linear(8, 2).eval(), dynamic=False)
        self.drift = torch.compile(Drift().eval(), dynamic=False)
        self.rows = []
        self.last_drift = None

    def warmup_inputs(self):
        return [Input(target=self.classify, args=([0.0] * 8,), name="row")]

    async def classify(self, values: list[float]) -> dict:
        if len(values) != 8:
            raise ValueError("send eight numbers")
        return await self.on_model_thread(self._run, values)

    def _run(self, values):
        with torch.inference_mode():
            label = self.model(torch.tensor([values])).argmax(-1).item()
            self.rows.append(values)
            if len(self.rows) >= FULL:
                self.last_drift = self.drift(torch.tensor(self.rows)).item()
                self.rows.clear()
        return {"label": label, "drift": self.last_drift}


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x))).squeeze(-1)


@row(
    "compile_switched_off_by_env",
    [("score", [[[1.0] * 8, [2.0] * 8]])],
    kind="no_compiled_code",
    env={"SCORER_COMPILE": "0"},
)
class Scoring(WarmupMixin):
    """A variable of the app, left over from a staging environment, switches torch.compile off.

    The source calls serve_warm.compile and declares inputs, but disable=True makes the call return
    the eager model. None of torch's own switches (TORCH_COMPILE_DISABLE, stances) is set. So
    nothing is compiled, all inputs run without a compile, and READY proves nothing.
    """

    buckets = Buckets(batch=[1, 4])

    def __init__(self):
        off = os.environ.get("SCORER_COMPILE", "1") == "0"
        self.model = serve_warm.compile(Hidden().eval(), dynamic=False, disable=off)

    def warmup_inputs(self):
        return [
            Input(target=self.score, args=([[0.0] * 8] * n,), name=f"batch {n}") for n in (4, 1)
        ]

    async def score(self, rows: list[list[float]]) -> list[float]:
        x = torch.zeros(self.buckets.fit(batch=len(rows))["batch"], 8)
        x[: len(rows)] = torch.tensor(rows)
        return await self.on_model_thread(self._run, x, len(rows))

    def _run(self, x, count):
        with torch.inference_mode():
            return self.model(x)[:count].tolist()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    @torch.compiler.disable  # TODO remove: was for printing activations
    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(x)))


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(x)


@row("disabled_block", [("encode", [[0.5] * 8]), ("encode", [[1.5] * 8])], kind="no_compiled_code")
class Encoder(WarmupMixin):
    """Somebody put @torch.compiler.disable on the block of the model while debugging, and left it.

    The model around the block only calls the block, so Dynamo sees the outer frame, breaks the
    graph at the disabled call, and compiles no operation at all. Calls go through a compiled module
    and never cause a compile again, but there is no compiled code behind the proof.
    """

    def __init__(self):
        self.model = torch.compile(Tower().eval(), dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.encode, args=([0.0] * 8,), name="one row")]

    async def encode(self, values: list[float]) -> list[float]:
        if len(values) != 8:
            raise ValueError("send eight numbers")
        return await self.on_model_thread(self._run, values)

    def _run(self, values):
        with torch.inference_mode():
            return self.model(torch.tensor([values]))[0].tolist()


@row(
    "dynamic_batch_right",
    [
        ("score", [[[1.0] * 6] * 2]),
        ("score", [[[2, 3, 4, 5, 6, 7]]]),
        ("score", [[[0.5] * 6] * 17]),
        ("score", [[[0.5] * 6] * 70]),
    ],
    kind="narrow",
    quiet=True,
)
class Batches(WarmupMixin):
    """Right: one dynamic graph for all batches of two or more, and a declared batch of one.

    The handler refuses empty requests and rows of another width, so 0 is impossible and the feature
    axis never differs. Every request that the handler accepts runs one of the two proven graphs, so
    a warning about this application would be a false alarm.
    """

    def __init__(self):
        model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 2))
        self.model = serve_warm.compile(model.eval(), dynamic=True)

    def warmup_inputs(self):
        return [
            Input(target=self.score, args=([[0.0] * 6] * n,), name=f"batch {n}") for n in (32, 9, 1)
        ]

    async def score(self, rows: list[list[float]]) -> list[list[float]]:
        if not rows or any(len(row) != 6 for row in rows):
            raise ValueError("send one or more rows of six numbers")
        x = torch.tensor(rows, dtype=torch.float32)
        return await self.on_model_thread(self._run, x)

    def _run(self, x):
        with torch.inference_mode():
            return self.model(x).tolist()


def group(user):
    return zlib.crc32(user.encode()) % 100  # warmup 56, dave 88, alice 35, bob 4


@row(
    "experiment_after_update",
    [("rank", ["dave", [1.0] * 8]), ("rank", ["alice", [1.0] * 8])],
    kind="first_request",
    user_config={"share": 0},
    update={"share": 50},
)
class Experiment(WarmupMixin):
    """A new user_config turns on an A/B experiment for half of the users.

    reconfigure only changes a number. After the update serve_warm replays the declared input again,
    but the test user "warmup" hashes into the control group, so nothing compiles and the replica
    stays READY. The first user in the other group runs the candidate model for the first time.
    """

    def __init__(self):
        control = nn.Linear(8, 4)
        candidate = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.control = torch.compile(control.eval(), dynamic=False)
        self.candidate = torch.compile(candidate.eval(), dynamic=False)
        self.share = 0

    def reconfigure(self, config):
        self.share = int(config.get("share", 0))

    def warmup_inputs(self):
        return [Input(target=self.rank, args=("warmup", [0.0] * 8), name="test user")]

    async def rank(self, user: str, values: list[float]) -> list[int]:
        if len(values) != 8:
            raise ValueError("send eight numbers")
        model = self.candidate if group(user) < self.share else self.control
        return await self.on_model_thread(self._run, model, values)

    def _run(self, model, values):
        with torch.inference_mode():
            return model(torch.tensor([values]))[0].argsort().tolist()


NAMES = ("age", "income", "visits")


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleDict({name: nn.Linear(1, 8) for name in NAMES})
        self.out = nn.Linear(8, 1)

    def forward(self, features):
        total = 0
        for name, value in features.items():
            total = total + torch.relu(self.towers[name](value))
        return self.out(total)


@row(
    "feature_key_order", [("risk", [{"visits": 3, "age": 41, "income": 2.5}])], kind="first_request"
)
class Risk(WarmupMixin):
    """The model takes a dict of features, in the order in which the client's JSON names them.

    forward loops over features.items() and adds up the towers, so the order does not matter for the
    result. Dynamo guards on the list of keys with its order. The declared input has one order; a
    client that writes the same features in another order causes a compile.
    """

    def __init__(self):
        self.model = torch.compile(Towers().eval(), dynamic=False)

    def warmup_inputs(self):
        features = dict.fromkeys(NAMES, 1.0)
        return [Input(target=self.risk, args=(features,), name="all features")]

    async def risk(self, features: dict[str, float]) -> float:
        if set(features) != set(NAMES):
            raise ValueError(f"send exactly these features: {NAMES}")
        return await self.on_model_thread(self._run, features)

    def _run(self, features):
        tensors = {name: torch.tensor([[float(value)]]) for name, value in features.items()}
        with torch.inference_mode():
            return self.model(tensors).item()


class Anomaly(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return (self.gain * centred / (centred.std(-1, keepdim=True) + 1e-6)).abs().max(-1).values


@row(
    "fixed_sensor_right",
    [("anomaly", [[0.0] * 11 + [9.0]]), ("anomaly", [list(range(12))])],
    kind="narrow",
    quiet=True,
)
class Sensors(WarmupMixin):
    """Right: a machine with twelve sensors sends twelve numbers, always.

    The handler itself does not check the width, because the gateway does, so another width would
    compile. The input says fixed=("args0",): the size never differs in traffic. serve_warm should
    believe that, and stay quiet about an axis that has only one size.
    """

    def __init__(self):
        self.model = serve_warm.compile(Anomaly().eval(), dynamic=False)

    def warmup_inputs(self):
        values = [0.5 * n for n in range(12)]
        return [Input(target=self.anomaly, args=(values,), fixed=("args0",), name="twelve sensors")]

    async def anomaly(self, values: list[float]) -> float:
        x = torch.tensor([values], dtype=torch.float32)
        return await self.on_model_thread(self._run, x)

    def _run(self, x):
        with torch.inference_mode():
            return self.model(x).item()


CANARY = [0.5] * 6


@row(
    "health_check_after_traffic",
    [
        ("score", [[0.1] * 6], {"request_id": "r-1"}),
        ("pause", [4.0]),
        ("score", [[0.2] * 6], {"request_id": "r-2"}),
    ],
    kind="first_request",
    options={"health_check_period_s": 1},
)
class Guarded(WarmupMixin):
    """check_health scores the last identified request once more, next to a canary row.

    Before traffic there is no such request, so the one call of check_health before READY returns at
    once and compiles nothing. After the first request with an id, the next health check calls the
    model with a batch of two. It compiles on the event loop, and the requests behind it wait.
    """

    def __init__(self):
        model = nn.Sequential(nn.Linear(6, 16), nn.Sigmoid(), nn.Linear(16, 1))
        self.model = torch.compile(model.eval(), dynamic=False)
        self.last = None

    def warmup_inputs(self):
        return [Input(target=self.score, args=([0.0] * 6,), name="row")]

    async def check_health(self):
        if self.last is None:
            return
        with torch.inference_mode():
            found = self.model(torch.tensor([self.last, CANARY]))
        if not torch.isfinite(found).all():
            raise RuntimeError("the model returns no finite numbers")

    async def score(self, values: list[float], request_id: str | None = None) -> float:
        if len(values) != 6:
            raise ValueError("send six numbers")
        if request_id is not None:
            self.last = values
        with torch.inference_mode():
            return self.model(torch.tensor([values])).item()

    async def pause(self, seconds: float) -> str:
        await asyncio.sleep(min(seconds, 5.0))
        return "ok"


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, counts):
        return self.net(torch.log1p(counts.float()))


@row(
    "json_int_or_float",
    [("forecast", [[3.0, 0.5, 7.0] * 4]), ("forecast", [[3, 0, 7] * 4])],
    kind="first_request",
)
class Demand(WarmupMixin):
    """A client that sends [3, 0, 7] instead of [3.0, 0.0, 7.0] changes the dtype of the tensor.

    torch.tensor makes float32 of the declared floats, and int64 of whole numbers in JSON. The model
    converts with .float() itself, so the handler accepts both. All sizes are the same, so nothing
    looks narrow, but the first client whose JSON encoder writes whole numbers waits for a compile.
    """

    def __init__(self):
        self.model = serve_warm.compile(Forecast().eval(), dynamic=False)

    def warmup_inputs(self):
        return [Input(target=self.forecast, args=([1.5] * 12,), name="twelve months")]

    async def forecast(self, months: list) -> list[float]:
        if len(months) != 12:
            raise ValueError("send twelve months")
        return await self.on_model_thread(self._run, months)

    def _run(self, months):
        with torch.inference_mode():
            return self.model(torch.tensor(months).unsqueeze(0))[0].tolist()


WINDOW = 48


class Windowed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.near = nn.Linear(16, 8)
        self.far = nn.Linear(16, 8)

    def forward(self, ids):
        x = self.embed(ids)
        if x.shape[1] > WINDOW:
            early, late = x[:, :-WINDOW], x[:, -WINDOW:]
            return self.near(late).mean(1) + self.far(early.mean(1))
        return self.near(x).mean(1)


@row(
    "long_text_windowed", [("vector", ["b" * 13]), ("vector", ["a long text " * 20])], kind="narrow"
)
class Summary(WarmupMixin):
    """One dynamic graph serves all lengths, except that the model switches to a window above 48.

    The branch is on a size, not on values, so it is a guard of the dynamic graph (length <= 48).
    The declared lengths 8 and 20 vary the axis, and other short lengths need no compile. The first
    text that is longer than the window leads to the other side of the branch and compiles.
    """

    def __init__(self):
        self.model = torch.compile(Windowed().eval(), dynamic=True)

    def warmup_inputs(self):
        return [Input(target=self.vector, args=("a" * n,), name=f"{n} characters") for n in (20, 8)]

    async def vector(self, text: str) -> list[float]:
        ids = list(text.encode())[:512]
        if len(ids) < 2:
            raise ValueError("send at least two characters")
        return await self.on_model_thread(self._run, ids)

    def _run(self, ids):
        with torch.inference_mode():
            return self.model(torch.tensor([ids]))[0].tolist()


LENGTH = 16
MODES = ("mean", "max", "first")


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 16, padding_idx=0)
        self.out = nn.Linear(16, 8)

    def forward(self, ids, mode):
        x = self.out(self.embed(ids))
        if mode == "mean":
            return x.mean(1)
        if mode == "max":
            return x.amax(1)
        return x[:, 0]


@row(
    "modes_all_declared_right",
    [
        ("embed", [""]),
        ("embed", ["schöne Grüße aus Zürich"], {"mode": "max"}),
        ("embed", ["x"], {"mode": "first"}),
    ],
    kind="narrow",
    quiet=True,
)
class Pooling(WarmupMixin):
    """Right: a string selects the pooling, and each accepted string has its own declared input.

    Texts are truncated and padded to 16 tokens, and an unknown mode is refused before the model is
    called. So the three proven graphs are all that traffic can reach, and a warning about the
    string or about the length of the text would be a false alarm.
    """

    def __init__(self):
        self.model = serve_warm.compile(Pooled().eval(), dynamic=False)

    def warmup_inputs(self):
        return [
            Input(target=self.embed, args=("some text",), kwargs={"mode": mode}, name=mode)
            for mode in MODES
        ]

    async def embed(self, text: str, mode: str = "mean") -> list[float]:
        if mode not in MODES:
            raise ValueError(f"mode is one of {MODES}")
        ids = list(text.encode())[:LENGTH]
        return await self.on_model_thread(self._run, ids + [0] * (LENGTH - len(ids)), mode)

    def _run(self, ids, mode):
        with torch.inference_mode():
            return self.model(torch.tensor([ids]), mode)[0].tolist()


class LateInteraction(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.project = nn.Linear(16, 8)

    def forward(self, query, document):
        q = nn.functional.normalize(self.project(self.embed(query)), dim=-1)
        d = nn.functional.normalize(self.project(self.embed(document)), dim=-1)
        return (q @ d.transpose(0, 1)).max(dim=1).values.mean()


@row(
    "query_and_document_same_length",
    [("match", ["same size", "same size"]), ("match", ["short", "a document that is longer"])],
    kind="narrow",
)
class Matcher(WarmupMixin):
    """In all declared pairs the query is as long as the document, as both are made in one line.

    With dynamic=True torch gives equal sizes the same symbol (duck shaping), so the graph has the
    guard that both lengths are equal. Two lengths are declared, so each axis varies. But real
    queries are shorter than documents, and the first real pair compiles.
    """

    def __init__(self):
        self.model = torch.compile(LateInteraction().eval(), dynamic=True)

    def warmup_inputs(self):
        return [
            Input(
                target=self.match,
                kwargs={"query": "q" * n, "document": "d" * n},
                name=f"length {n}",
            )
            for n in (24, 10)
        ]

    async def match(self, query: str, document: str) -> float:
        if len(query) < 2 or len(document) < 2:
            raise ValueError("send at least two characters")
        return await self.on_model_thread(self._run, query.encode()[:64], document.encode()[:64])

    def _run(self, query, document):
        with torch.inference_mode():
            return self.model(torch.tensor(list(query)), torch.tensor(list(document))).item()


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0})
class Ranker:
    def __init__(self):
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
        self.model = torch.compile(model.eval(), dynamic=False)

    async def rank(self, rows: list[list[float]]) -> list[int]:
        with torch.inference_mode():
            return self.model(torch.tensor(rows)).squeeze(1).argsort().tolist()


@row(
    "router_over_plain_child",
    [("rank", [[[float(row)] * 8 for row in range(3)]])] * 8,
    kind="no_compiled_code",
    given=(Ranker.bind(),),
)
class Router(WarmupMixin):
    """A router has the mixin and the input, and the deployment with the model has neither.

    The replay of the router goes to one of the two replicas of Ranker and makes that one compile.
    The other replica is RUNNING and cold. The router has no compiled code of its own, so its proof
    says nothing about Ranker, and the first user who is routed to the cold replica waits.
    """

    def __init__(self, ranker):
        self.ranker = ranker

    def warmup_inputs(self):
        rows = [[0.0] * 8 for _ in range(3)]
        return [Input(target=self.rank, args=(rows,), name="three rows")]

    async def rank(self, rows: list[list[float]]) -> list[int]:
        if len(rows) != 3 or any(len(row) != 8 for row in rows):
            raise ValueError("send three rows of eight numbers")
        return await self.ranker.rank.remote(rows)


class Similarity(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(10, 16)

    def forward(self, signal, reference):
        a = torch.tanh(self.encoder(signal))
        b = torch.tanh(self.encoder(reference))
        return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1) + 1e-6)


@row(
    "same_tensor_twice",
    [("compare", [[0.5] * 10])],
    kind="first_request",
    settings={"after_ready": "forbid"},
)
class Compare(WarmupMixin):
    """If a request has no reference, the handler compares the signal with itself.

    It passes the same tensor object for both arguments. Dynamo guards that two inputs are different
    tensors, as in the declared input. Sizes and dtypes are the same, so only the identity of the
    arguments differs. With after_ready: forbid the user gets HTTP 503 instead of waiting.
    """

    def __init__(self):
        self.model = torch.compile(Similarity().eval(), dynamic=False)

    def warmup_inputs(self):
        signal, reference = [0.1] * 10, [0.2] * 10
        return [Input(target=self.compare, args=(signal, reference), name="pair")]

    async def compare(self, signal: list[float], reference: list[float] | None = None) -> float:
        if any(len(values) != 10 for values in (signal, reference) if values is not None):
            raise ValueError("a signal has ten numbers")
        return await self.on_model_thread(self._run, signal, reference)

    def _run(self, signal, reference):
        first = torch.tensor([signal])
        second = first if reference is None else torch.tensor([reference])
        with torch.inference_mode():
            return self.model(first, second).item()


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(6, 8)
        self.state = nn.Linear(8, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, x, state):
        state = torch.tanh(self.inputs(x) + self.state(state))
        return self.out(state), state


@row(
    "session_state_returned",
    [("step", [[0.1] * 6], {"session": "alice"}), ("step", [[0.2] * 6], {"session": "alice"})],
    kind="first_request",
)
class Tracker(WarmupMixin):
    """A stateful session feeds the state that the model returned back into the model.

    The first message of a session starts with zeros that were made outside of inference mode. The
    second message passes a tensor that was made inside: an inference tensor with other dispatch
    keys, on which Dynamo guards. The declared input has no session, so each replay starts with
    zeros, and the second message of the first user compiles.
    """

    def __init__(self):
        self.model = torch.compile(Cell().eval(), dynamic=False)
        self.states = {}

    def warmup_inputs(self):
        return [Input(target=self.step, args=([0.0] * 6,), name="step")]

    async def step(self, values: list[float], session: str | None = None) -> list[float]:
        if len(values) != 6:
            raise ValueError("send six numbers")
        return await self.on_model_thread(self._run, values, session)

    def _run(self, values, session):
        state = self.states.get(session)
        if state is None:
            state = torch.zeros(1, 8)
        x = torch.tensor([values])
        with torch.inference_mode():
            out, state = self.model(x, state)
            if session is not None:
                self.states[session] = state
            return out[0].tolist()


BULK_THREADS = 3


@row(
    "threads_by_priority",
    [("score", [[[1.0] * 8] * 4]), ("score", [[[1.0] * 8] * 4], {"priority": "bulk"})],
    kind="first_request",
    env={"OMP_NUM_THREADS": "1"},
)
class Bulk(WarmupMixin):
    """Bulk requests set the number of torch threads for the duration of the call.

    Dynamo's global guard covers torch.get_num_threads(). Warm-up and proof run with the thread
    count of the process, because the declared input has the default priority. The first bulk
    request has the same shapes, dtypes and modes, and still compiles.
    """

    def __init__(self):
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
        self.model = torch.compile(model.eval(), dynamic=False)

    def warmup_inputs(self):
        rows = [[0.0] * 8 for _ in range(4)]
        return [Input(target=self.score, args=(rows,), name="four rows")]

    async def score(self, rows: list[list[float]], priority: str = "interactive") -> list[float]:
        if len(rows) != 4 or any(len(row) != 8 for row in rows):
            raise ValueError("send four rows of eight numbers")
        return await self.on_model_thread(self._run, rows, priority)

    def _run(self, rows, priority):
        before = torch.get_num_threads()
        if priority == "bulk":
            torch.set_num_threads(BULK_THREADS)
        try:
            with torch.inference_mode():
                return self.model(torch.tensor(rows)).squeeze(1).tolist()
        finally:
            if priority == "bulk":
                torch.set_num_threads(before)


BINS = 64


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Linear(8, 16)
        self.bias = nn.Parameter(torch.randn(BINS, 16))

    def forward(self, x, user):
        return self.items(x) + self.bias[user % BINS]


@row(
    "user_id_as_python_int",
    [("recommend", [user, [0.25] * 8]) for user in range(2001, 2013)],
    kind="advice",
)
class Recommend(WarmupMixin):
    """The user's id goes into the compiled model as a Python int, to pick a row of a bias table.

    With dynamic=False torch makes a graph for each id. Warm-up proves the two test users, and every
    other user waits for a compile, until the recompile limit turns the function eager. No list of
    declared inputs can cover this: the useful advice is to pass the id as a tensor.
    """

    def __init__(self):
        self.model = torch.compile(Recommender().eval(), dynamic=False)

    def warmup_inputs(self):
        return [
            Input(
                target=self.recommend,
                kwargs={"user": user, "profile": [0.0] * 8},
                name=f"test user {user}",
            )
            for user in (1001, 1002)
        ]

    async def recommend(self, user: int, profile: list[float]) -> list[int]:
        if len(profile) != 8:
            raise ValueError("a profile has eight numbers")
        return await self.on_model_thread(self._run, user, profile)

    def _run(self, user, profile):
        with torch.inference_mode():
            scores = self.model(torch.tensor([profile]), user)
            return scores[0].topk(3).indices.tolist()
