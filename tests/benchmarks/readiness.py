# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Tries situations in which a replica could be READY and the first user waits for the compiler.

    python tests/benchmarks/readiness.py --json tests/benchmarks/results/readiness.json

The files of `tests/readiness/rows` have applications of Ray Serve, as a user would write them, with
the requests that their handlers accept after READY. This program deploys each one on a real cluster
of this machine, reads the report, sends the requests, and writes one row. A row is *silent* if the
report claimed that all is proven, narrow nowhere and not degraded, and yet a request compiled, ran
eagerly or failed; or if nothing is compiled there. No row may be silent, except where the
application itself changes after READY (`changes_later`). What is said must match `says`. Rows with
`artifact` start from one that is built first, so that their verdict is `full_hit`. A row of a
right application (`quiet`) may not be narrow or degraded.

The program continues where an earlier run stopped: a row is tried again if its file or the part of
the package that decides it has changed. `--minutes 8` ends a run between two rows.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "tests/readiness/rows"
START_S, REQUEST_S = 240.0, 120.0
"""How long a start and a request may take."""

KINDS = ("no_compiled_code", "first_request", "narrow", "advice")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where the rows are written, and read again")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("names", nargs="*", help="rows to try; all by default")
    asked = parser.parse_args()
    rows = load_rows()
    if asked.names:
        rows = {name: rows[name] for name in asked.names}
    done = _known(asked.json)
    until_s = time.monotonic() + asked.minutes * 60
    wanted = [
        name
        for name, about in rows.items()
        if asked.names or done.get(name, {}).get("digest") != _digest(about)
    ]
    if wanted:
        with tempfile.TemporaryDirectory(prefix="readiness-") as folder:
            cluster = RowCluster(Path(folder))
            try:
                for number, name in enumerate(wanted, 1):
                    if time.monotonic() > until_s:
                        break
                    row = done[name] = cluster.try_row(name, rows[name])
                    sys.stderr.write(f"[{number}/{len(wanted)}] {_line(row)}\n")
                    _write(asked.json, done)
            finally:
                cluster.stop()
    found = [done[name] for name in rows if name in done]
    wrong = [row["name"] for row in found if row["silent"] or row["false_alarm"] or row["failed"]]
    left = len(rows) - len(found)
    named = ", ".join(wrong) or "none"
    sys.stdout.write(f"{len(found)} rows, {left} left, {len(wrong)} wrong: {named}\n")
    sys.exit(bool(wrong) or bool(left))


def _known(file: Path | None) -> dict[str, Any]:
    if file is None or not file.exists():
        return {}
    return {row["name"]: row for row in json.loads(file.read_text())["rows"]}


def _write(file: Path | None, done: dict[str, Any]) -> None:
    if file is None:
        return
    import ray
    import torch

    data = {
        "machine": {"torch": torch.__version__, "ray": ray.__version__, "cores": os.cpu_count()},
        "rows": [done[name] for name in sorted(done)],
    }
    file.write_text(json.dumps(data, indent=1) + "\n")


def _digest(about: dict[str, Any]) -> str:
    """Return a digest of a row's file and of the parts of the package that decide its result."""
    of = hashlib.sha256((ROWS / f"{about['module']}.py").read_bytes())
    package = ROOT / "serve_warm"
    for name in ("inputs.py", "compiler/*.py", "precompile/**/*.py", "replica/**/*.py"):
        for source in sorted(package.glob(name)):
            of.update(source.read_bytes())
    return of.hexdigest()[:16]


def _line(row: dict[str, Any]) -> str:
    marks = [name for name in ("silent", "false_alarm", "failed") if row[name]]
    return f"{row['name']}: {row['verdict']} {row['said'][:160]!r} {' '.join(marks)}"


class RowCluster:
    """A Ray cluster of this machine, which runs one application after the other."""

    def __init__(self, folder: Path) -> None:
        path = [str(ROWS), str(ROOT), os.environ.get("PYTHONPATH", "")]
        os.environ |= {
            "PYTHONPATH": os.pathsep.join(path),
            "SERVE_WARM_STATE_DIR": str(folder / "state"),
            "RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "10",
            "RAY_DEDUP_LOGS": "0",
        }
        import ray
        from ray import serve
        from ray.serve.config import HTTPOptions

        ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="error")
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=0))
        self._logs = Path(ray._private.worker._global_node.get_logs_dir_path()) / "serve"
        self._ray, self._serve, self._folder = ray, serve, folder

    def stop(self) -> None:
        self._serve.shutdown()
        self._ray.shutdown()

    def try_row(self, name: str, about: dict[str, Any]) -> dict[str, Any]:
        """Deploy an application, send its requests, and return its row."""
        row: dict[str, Any] = {
            "name": name,
            "kind": about["kind"],
            "from_docs_alone": about.get("blind", False),
            "quiet": about.get("quiet", False),
            "changes_later": about.get("changes_later", False),
            "digest": _digest(about),
            "verdict": "",
            "first_request_s": 0.0,
            "compiles_after_ready": 0,
            "said": "",
            **{each: [] for each in ("narrow", "unvaried", "degraded", "errors")},
            **dict.fromkeys(("silent", "false_alarm", "failed"), False),
        }
        try:
            if about.get("artifact"):
                about["settings"] = {"artifact": self._build(name, about)}
            error = self._deploy(name, about, about.get("user_config"))
            if error:
                # A refused start is no silent one, unless the application is right.
                row |= {"verdict": "failed", "said": error, "failed": row["quiet"]}
                return self._judged(row, about, claims=False)
            before = self._report(name, about)
            if "update" in about:
                error = self._deploy(name, about, about["update"])
                before = self._report(name, about)
            seconds, errors = self._ask(name, about)
            after = self._report(name, about)
        except Exception as error:  # noqa: BLE001 - the row says so, and the next one is tried
            return {**row, "failed": True, "said": f"{type(error).__name__}: {error}"[:500]}
        finally:
            self._serve.delete(name)
        traffic = after["after_ready"]
        row |= {
            "verdict": before["verdict"] or before["stage"],
            **{each: before[each] for each in ("narrow", "unvaried", "degraded")},
            "first_request_s": round(max(seconds, default=0.0), 3),
            "compiles_after_ready": traffic["compiles"] + traffic["eager_falls"],
            "errors": errors,
            "said": self._said(name, before),
        }
        covered = before["covered"]
        claims = (
            before["stage"] == "READY"
            and covered["proven"] == covered["expected"]
            and not (row["narrow"] or row["unvaried"] or row["degraded"])
            and not before["nothing_compiles"]
        )
        return self._judged(row, about, claims=claims)

    def _build(self, name: str, about: dict[str, Any]) -> str:
        """Build the artifact of an application; return the address of its store."""
        store = f"file://{self._folder / name}"
        command = [
            "build",
            f"{about['module']}:{about['app']}",
            "--store",
            store,
            "--deployment",
            about["deployment"],
        ]
        environment = {**os.environ, "RAY_ADDRESS": "local"}
        subprocess.run(
            [sys.executable, "-m", "serve_warm.cli", *command],
            env=environment,
            check=True,
            stdout=sys.stderr,
            timeout=3 * START_S,  # a build starts three times
        )
        return store

    def _judged(
        self, row: dict[str, Any], about: dict[str, Any], *, claims: bool
    ) -> dict[str, Any]:
        failed_request = [each for each in row["errors"] if not about.get("may_fail")]
        compiled = row["compiles_after_ready"] > 0 or bool(failed_request)
        nothing = row["kind"] == "no_compiled_code" and not row["quiet"]
        # Nothing before READY can show that an application will change. `says` judges the advice.
        row["silent"] = claims and (compiled or nothing) and not row["changes_later"]
        row["false_alarm"] = row["quiet"] and (not claims or compiled)
        is_said = re.search(about.get("says", ""), row["said"], re.DOTALL) is not None
        row["failed"] = row["failed"] or not is_said
        return row

    def _deploy(self, name: str, about: dict[str, Any], config: Any) -> str:
        """Deploy or update an application; return why the start failed."""
        from ray.serve.context import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        config = {**(config or {}), "warmup": about.get("settings", {})}
        deployment = {"name": about["deployment"], "user_config": config}
        application = {
            "name": name,
            "route_prefix": f"/{name}",
            "import_path": f"{about['module']}:{about['app']}",
            "runtime_env": {"env_vars": about.get("env", {})},
            "deployments": [{**deployment, **about.get("options", {})}],
        }
        client = _get_global_client()
        client.deploy_apps(ServeDeploySchema(applications=[application]))
        began_s = time.monotonic()
        time.sleep(1.0)  # Serve says RUNNING until it has seen the change
        while time.monotonic() - began_s < START_S:
            found = client.get_serve_details()["applications"].get(name)
            status = str(found["status"].value) if found else ""
            if status == "RUNNING":
                return ""
            deployments = found["deployments"].values() if found else ()
            messages = " ".join(each["message"] for each in deployments)
            if status == "DEPLOY_FAILED" or "failed" in messages.lower():
                return (f"{found['message']} {messages}" if found else "")[-3000:]
            time.sleep(0.25)
        raise TimeoutError(f"not RUNNING after {START_S:.0f} s")

    def _handle(self, name: str, about: dict[str, Any]) -> Any:
        return self._serve.get_deployment_handle(about["deployment"], name)

    def _report(self, name: str, about: dict[str, Any]) -> dict[str, Any]:
        handle = self._handle(name, about)
        report: dict[str, Any] = handle.warmup_report.remote().result(timeout_s=REQUEST_S)
        return report

    def _ask(self, name: str, about: dict[str, Any]) -> tuple[list[float], list[str]]:
        """Send each request once; return the seconds of each, and the errors."""
        handle, seconds, errors = self._serve.get_app_handle(name), [], []
        for method, args, *rest in about["requests"]:
            kwargs = rest[0] if rest else {}
            began_s = time.perf_counter()
            try:
                if about.get("streams") and method in about["streams"]:
                    call = handle.options(stream=True, method_name=method).remote(*args, **kwargs)
                    for _ in call:
                        pass
                else:
                    options = about.get("handle", {})
                    call = getattr(handle.options(**options), method).remote(*args, **kwargs)
                    call.result(timeout_s=REQUEST_S)
            except Exception as error:  # noqa: BLE001 - it is the finding
                errors.append(f"{method}: {type(error).__name__}: {error}"[:300])
            seconds.append(time.perf_counter() - began_s)
        return seconds, errors

    def _said(self, name: str, report: dict[str, Any]) -> str:
        """Return what a user reads: the report's lines, and the log lines after READY."""
        lines = [*report["narrow"], *report["unvaried"], *report["degraded"], *report["warnings"]]
        lines += [item["note"] for item in report["inputs"] if item["note"]]
        time.sleep(0.2)
        for log in self._logs.glob(f"*{name}*"):
            text = log.read_text(errors="replace")
            text = text.replace(f"{ROOT}/", "").replace(f"{ROOT.name}/tests/", "tests/")
            lines += re.findall(r"(?:after ready: |WARNING .* -- )(.*)", text)
        return "\n".join(dict.fromkeys(lines))[:4000]


def load_rows() -> dict[str, dict[str, Any]]:
    """Return what the files say about their rows, by name.

    A file has one application and its `ROW`, or several with their `ROWS`.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.insert(0, str(ROWS))
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(ROWS.glob("[a-z]*.py")):
        module = importlib.import_module(file.stem)
        rows = vars(module).get("ROWS") or {file.stem: {"app": "app", **module.ROW}}
        for name, about in rows.items():
            application = getattr(module, about["app"])
            deployment = application._bound_deployment.name
            found[name] = {"deployment": deployment, "module": file.stem, **about}
            assert about["kind"] in KINDS
    return dict(sorted(found.items()))


if __name__ == "__main__":
    main()
